"""Does an installed package work? `make wheel` runs this where the wheel is installed and nothing else of ours."""

import subprocess
import sys
import urllib.request
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
assert all(hits for hits in index.search(q[:3], by="nearest", limit=1))
# Files that are not Python come along.
static = Path(al.__file__).parent / "web" / "static"
assert (static / "page.html").is_file()
aleator = Path(sys.executable).with_name("aleator")
assert "quickstart" in subprocess.run([aleator, "--help"], capture_output=True, text=True, check=True).stdout
# The server, as the image starts it: it answers, and ends with 0 at SIGTERM.
index.save("gallery")
index.close()
command = [aleator, "serve", "gallery", "--port", "0", "--workers", "2"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split()[3]
        with urllib.request.urlopen(address + "api/health", timeout=60) as response:
            assert b"ok" in response.read()
        server.terminate()
        assert server.wait(60) == 0
    finally:
        server.kill()
print(f"aleator {al.__version__} works")
