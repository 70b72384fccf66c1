# small_root.sh FOLDER: a system of busybox alone, under all its names, and under that of bash.
set -euo pipefail
mkdir -p "$1"/{bin,etc,tmp,usr/bin}
cp /bin/busybox "$1/bin/"
cd "$1/bin"
for name in $(./busybox --list); do [ "$name" = busybox ] || ln -s busybox "$name"; done
printf '#!/bin/sh\nexec /bin/sh "$@"\n' >bash
chmod 755 bash
ln -s /bin/busybox ../usr/bin/env
