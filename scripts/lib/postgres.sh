#!/usr/bin/env bash
# Runs a command beside a PostgreSQL server of its own, whose URL the command finds in SANDPIPER_TEST_POSTGRES. For tests:
# the server ends with the command, and what it holds is gone, as it would be in a power cut.
#
#   scripts/lib/postgres.sh COMMAND...
#
# It is Debian's PostgreSQL, installed where missing; no other server of the machine is touched. It listens on a socket in
# a folder of its own, nowhere else.
set -euo pipefail
. "$(dirname "$0")/common.sh"

[ $# -gt 0 ] || die "usage: scripts/lib/postgres.sh COMMAND..."

need_postgresql
programs=$(find /usr/lib/postgresql -mindepth 2 -maxdepth 2 -name bin | sort -V | tail -n 1)

folder=$(mktemp -d)
server=
stop() {
    # SIGINT: at once, without waiting for clients.
    [ -z "$server" ] || { kill -INT "$server" && wait "$server"; } || true
    rm -rf "$folder"
}
trap stop EXIT

# PostgreSQL refuses to run as root.
run=()
if [ "$(id -u)" = 0 ]; then
    chown postgres "$folder"
    run=(setpriv --reuid=postgres --regid=postgres --init-groups)
fi
cd "$folder"
"${run[@]}" "$programs/initdb" --pgdata=data --username=postgres --auth=trust --encoding=UTF8 --locale=C --no-sync >log ||
    { cat log >&2; die "PostgreSQL could not make its files"; }
"${run[@]}" "$programs/postgres" -D data -k "$folder" -c listen_addresses= -c fsync=off -c full_page_writes=off \
    -c max_connections=200 >>log 2>&1 &
server=$!
for attempt in {1..300}; do
    "$programs/pg_isready" --quiet --host="$folder" --username=postgres && break
    kill -0 "$server" 2>/dev/null && [ "$attempt" != 300 ] || { cat log >&2; die "PostgreSQL did not start"; }
    sleep 0.1
done
cd "$OLDPWD"

SANDPIPER_TEST_POSTGRES="postgres:///postgres?host=$folder&user=postgres" "$@"
