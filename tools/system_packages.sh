#!/bin/sh
# What some tests need of the system: a browser (tests/web), an SSH server on loopback (ullage run --on, campaigns)
# and PostgreSQL (a campaign's store).
# Installs what is missing where apt-get and root are; never fails: without them those tests skip and say why.
set -u
missing=""
command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || missing="$missing chromium"
command -v sshd >/dev/null 2>&1 || [ -x /usr/sbin/sshd ] || missing="$missing openssh-server"
command -v ssh >/dev/null 2>&1 || missing="$missing openssh-client"
command -v initdb >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$missing postgresql"
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "not installed, their tests skip:$missing (needs root and apt-get)"
    exit 0
fi
echo "installing$missing"
export DEBIAN_FRONTEND=noninteractive
# no service may start: the tests start their own sshd, on loopback
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && trap 'rm -f "$policy"' EXIT
fi
log=$(mktemp) || exit 0
if ! { apt-get -qq update && apt-get -qq install -y --no-install-recommends $missing; } >"$log" 2>&1; then
    echo "cannot be installed, their tests skip:$missing: $(tail -n 1 "$log")"
fi
rm -f "$log"
exit 0
