# SPDX-License-Identifier: Apache-2.0
"""A virtual environment with third-party clients, for scripts/check_clients and scripts/check_agents."""
import os
import subprocess
import sys
import venv

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def environment(name, packages):
    """Makes the environment below build/ and returns its interpreter, and pip's last message for each package that could not
    be installed. Without a package index none can be installed, but earlier installations remain."""
    folder = os.path.join(ROOT, "build", name)
    python = os.path.join(folder, "bin/python")
    try:
        if not os.path.exists(python):
            venv.create(folder, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as e:
        return sys.executable, dict.fromkeys(packages, "no environment: %s" % e)
    missing = {}
    for package in packages:
        r = subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--retries", "1", "--timeout", "15",
                            "--upgrade", package], capture_output=True, text=True, timeout=1800)
        if r.returncode:
            missing[package] = (r.stderr.strip().splitlines() or ["pip failed"])[-1]
    return python, missing
