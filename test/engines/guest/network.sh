#!/bin/sh
# The network of qemu has no more than the host in it.
set -eu
link=$(basename "$(readlink -e /sys/class/net/e*)")
ip link set "$link" up
ip address replace 10.0.2.15/24 dev "$link"
ip route replace default via 10.0.2.2
