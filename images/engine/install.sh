#!/bin/sh
# install.sh REQUIREMENTS: installs pinned requirements into /opt/venv, with bytecode for what is new.
#
# uv keeps no cache: the wheels would lie on the disk a second time, 6 GB for one more download when a version changes.
# Bytecode is trusted without a look at the source. uv would compile everything that earlier layers hold again, too.
set -eu
export UV_NO_CACHE=1 UV_PYTHON_DOWNLOADS=never
touch /tmp/before
/opt/uv pip install --python /opt/venv/bin/python --no-deps --require-hashes -r "$1"
# some packages carry files that are no Python of this version: they are never imported, and no reason to stop
find /opt/venv/lib/python3*/site-packages -mindepth 1 -maxdepth 1 -cnewer /tmp/before ! -name __pycache__ \
  -exec /opt/venv/bin/python -m compileall -qq -j 0 --invalidation-mode unchecked-hash {} + || true
rm /tmp/before
