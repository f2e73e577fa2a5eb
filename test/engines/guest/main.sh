#!/bin/bash
# Carries out the scripts of the host, each of them a line of the virtio port: seconds, and the script in base64. The answer is a line too:
# the exit code, and the output in base64. The line "off" ends it, and then the power.
set -u
mkdir -p /var/lib/gpushare-lab /run/lab
[ -p /run/lab/never ] || mkfifo /run/lab/never # It has no writer: a wait without a process.
exec 3<>/dev/virtio-ports/gpushare.lab
echo "ready systemd $(systemctl --version | sed -n '1s/systemd //p'), Linux $(uname -r)" >&3
while read -r -u 3 seconds script && [ "$seconds" != off ]; do
	base64 -d <<<"$script" >/run/lab/script.sh
	timeout -k 5 "$seconds" bash /opt/lab/guest/one.sh </dev/null >/run/lab/script.out 2>&1 3>&-
	echo "$? $(head -c 200000 /run/lab/script.out | base64 -w 0)" >&3
done
journalctl --no-pager -b -o short-monotonic >/dev/virtio-ports/gpushare.journal 2>/dev/null
