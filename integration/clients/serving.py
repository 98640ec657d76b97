"""How a server of the tests says where it is and when it ends."""

import json
import os
import sys
import threading


def say(event):
    """One line of JSON, at once: whoever started the server reads them as they come."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def listening(port):
    """Says the port, and ends the process when its input ends: with whoever started it, however that ends."""
    say({"listening": f"127.0.0.1:{port}"})
    threading.Thread(target=end_with_input, daemon=True).start()


def end_with_input():
    sys.stdin.buffer.read()
    os._exit(0)
