"""Does an installed package work? `make wheel` runs this where the wheel is installed and nothing else of ours."""

import subprocess
import sys
from pathlib import Path

import torch

import aleator as al

assert "site-packages" in al.__file__, f"not the installed package: {al.__file__}"
process = al.GenerativeProcess(dim=3, seed=1, smoothing_steps=10)
encoder = al.controlled_encoder(3)
loss = al.ExactInfoNCE(process.kernel)
result = al.fit(encoder, loss, process.batches(32), al.Recipe(steps=3), device="cpu", progress=False)
assert result.steps == 3
encoder.save("encoder")
with torch.no_grad():
    q = al.load_encoder("encoder")(process.inputs(50))
index = al.CredibleIndex.build(q)
assert all(hits for hits in index.search(q[:3], p=0.99, by="nearest", limit=1))
# Files that are not Python come along.
static = Path(al.__file__).parent / "web" / "static"
assert (static / "page.html").is_file()
aleator = Path(sys.executable).with_name("aleator")
assert "quickstart" in subprocess.run([aleator, "--help"], capture_output=True, text=True, check=True).stdout
print(f"aleator {al.__version__} works")
