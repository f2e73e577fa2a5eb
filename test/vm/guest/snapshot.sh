#!/bin/bash
# snapshot.sh prints everything on a host that gpushare could have changed: files, units, properties of shared slices, cgroups
# and device programs.
echo "# files"
find /etc /usr /run/systemd /run/cdi /var/lib /dev/shm -xdev \( -path '*gpushare-lab*' -o -path '*gpusim*' -o -path /var/lib/systemd -o -path /run/systemd/transient \
	-o -path /run/systemd/sessions -o -path /run/systemd/users -o -path /run/systemd/units -o -path /run/systemd/inaccessible -o -path /run/systemd/propagate \) -prune \
	-o -iname '*gpushare*' -print -o -path '*/system.control/*' -print -o -path /run/cdi/\* -print 2>/dev/null | grep -v '^/\(etc\|run\)/systemd/system.control/lab-\|gpusharetest\|^/etc/g\?shadow\|^/opt' | sort
echo "# units"
systemctl list-unit-files --no-legend 'gpushare*' 'user*.slice' 'user@.service' | grep -v gpushare-lab | awk '{ print $1, $2 }'
systemctl list-units --all --no-legend --plain 'gpushare*' | awk '!/gpushare-lab|gpusharetest/ && $3 != "inactive" { print $1, $3 }'
echo "# shared slices"
for unit in user.slice system.slice -.slice init.scope; do
	systemctl show -p DevicePolicy -p DeviceAllow -p MemoryMax -p CPUQuotaPerSecUSec -p CPUWeight -p TasksMax -p DropInPaths -p BPFProgram -p Delegate -- "$unit"
done
echo "# cgroups"
find /sys/fs/cgroup -type d -name '*gpushare*' | grep -v 'gpushare-lab\|gpusharetest'
cat /sys/fs/cgroup/cgroup.subtree_control # Not of user.slice: there it goes by who is logged in.
echo "# device programs"
for cg in / /user.slice /system.slice /gpushare.slice; do
	[ ! -d "/sys/fs/cgroup$cg" ] || bpftool cgroup show "/sys/fs/cgroup$cg" 2>/dev/null | awk -v cg=$cg 'NR > 1 { print cg, $2, $3, $4 }'
done
bpftool prog show 2>/dev/null | awk '/name gpushare|name gs_/ { print }'
find /sys/fs/bpf -mindepth 1 -iname '*gpushare*' 2>/dev/null
echo "# profiles of AppArmor"
grep gpushare /sys/kernel/security/apparmor/profiles
echo "# D-Bus and users"
ls /etc/dbus-1/system.d /usr/share/dbus-1/system.d 2>/dev/null | grep -i gpushare
getent passwd | grep -i gpushare
pgrep -af 'gpushare|nvidia-cuda-mps' | grep -v 'gpushare-lab\|snapshot\|/opt/lab' | cut -d' ' -f2-
true
