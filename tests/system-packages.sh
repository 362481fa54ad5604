#!/bin/sh
# Installs the Debian packages that some tests need, where that is possible: PostgreSQL and Chromium.
# Without them those tests are skipped and say so; this script never fails.

LIMIT=300

missing() {
    ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || command -v postgres >/dev/null || echo postgresql
    command -v chromium >/dev/null || command -v chromium-browser >/dev/null ||
        command -v google-chrome >/dev/null || echo chromium
}

wanted=$(missing)
[ -n "$wanted" ] || exit 0
if ! command -v apt-get >/dev/null; then
    echo "tests: there is no apt-get to install" $wanted "with; what needs them is skipped"
    exit 0
fi
if [ "$(id -u)" = 0 ]; then
    as_root=
elif sudo -n true 2>/dev/null; then
    as_root="sudo -n"
else
    echo "tests: only root could install" $wanted"; what needs them is skipped"
    exit 0
fi
echo "tests: installing" $wanted
install() {
    # at this run level Debian starts no server of its own
    timeout $LIMIT $as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
        apt-get install -qq -y --no-install-recommends $wanted
}
if ! { install || { timeout $LIMIT $as_root apt-get update -qq && install; }; } >/dev/null 2>&1 </dev/null; then
    echo "tests: could not install" $(missing)"; what needs them is skipped"
fi
exit 0
