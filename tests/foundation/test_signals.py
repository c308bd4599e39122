"""A process that is told to stop ends what it has started."""

import signal
import subprocess
import sys
import threading

from aleator.foundation import raised_on_sigterm


def test_a_signal_to_stop_ends_what_was_started():
    code = (
        "import time\nfrom aleator.foundation import raised_on_sigterm\n"
        "with raised_on_sigterm(SystemExit(143)):\n    try:\n        print('begun', flush=True)\n"
        "        time.sleep(60)\n    finally:\n        print('ended', flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "ended\n"
    assert process.returncode == 128 + signal.SIGTERM


def test_afterwards_and_in_other_threads_a_signal_does_what_it_did():
    before = signal.getsignal(signal.SIGTERM)
    with raised_on_sigterm(KeyboardInterrupt()):
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
    found = []

    def look() -> None:
        with raised_on_sigterm(KeyboardInterrupt()):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [before]
