# SPDX-License-Identifier: Apache-2.0
"""Builds test libraries that intercept a program's system calls (LD_PRELOAD)."""

import functools
import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(ROOT, os.environ.get("SLUICE_BUILD", "build/release"))


@functools.cache
def preload(source):
    """Builds test/SOURCE, and returns the environment that preloads it. The dynamic linker starts a program without a preloaded
    library that it cannot read, so a library must never be visible half written."""
    lib = os.path.join(BUILD, "test", os.path.splitext(source)[0] + ".so")
    new = "%s.%d" % (lib, os.getpid())
    os.makedirs(os.path.dirname(lib), exist_ok=True)
    subprocess.run([*os.environ.get("CC", "cc").split(), "-D_GNU_SOURCE", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", new,
                    os.path.join(ROOT, "test", source), "-ldl", "-lpthread"], check=True)
    os.replace(new, lib)
    return {"LD_PRELOAD": lib}
