#!/bin/bash
# image.sh DIRECTORY SUITE builds a guest image of the VM lab: the root file
# system of a Debian (bookworm, trixie) as DIRECTORY/root.img, its kernel
# (DIRECTORY/vmlinuz) and its initrd.
#
# It contains nothing of gpushare. Binaries and checks are on a second disk, so
# the image is built once for each version of this file: the caller keys its
# cache with a hash of it.
#
# Packages come from the mirror of the host's apt, with its proxy and its
# setting for stale mirrors. Without a Debian mirror there, mmdebstrap's default
# is used.
set -euo pipefail
out=$1
suite=$2
size=2600M

packages=(
	systemd systemd-sysv udev dbus
	libpam-systemd    # Without it user@.service fails, and the checks of escapes pass for the wrong reason.
	dbus-user-session # A user manager can move processes out of a lease.
	linux-image-cloud-amd64
	kmod procps iproute2
	busybox-static cpio xz-utils # For the initrd below.
	gojq                       # The checks read JSON. It starts ten times faster than jq 1.6.
	openssh-server openssh-client cron at # Logins, and jobs of users outside of logins.
	podman crun uidmap         # Containers, rootless ones too.
	apparmor                   # Loads the profiles of the package, which are in force in every phase.
	polkitd pkexec             # It decides for users what root's services do, as on most hosts.
	systemd-container          # machinectl
	ansible-core python3-apt   # It applies the role of the collection to the guest itself.
	bpftool strace             # Lists attached programs; and a tool of the attacker.
	slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge # A scheduler next to the product. Started by its phase.
	containerd runc            # The same.
)

if [ "$(id -u)" != 0 ]; then
	echo "image.sh: cannot build the guest image: it needs root (mmdebstrap makes device nodes and foreign owners)" >&2
	exit 1
fi
for tool in mmdebstrap mke2fs ssh-keygen; do
	if ! command -v "$tool" >/dev/null; then
		echo "image.sh: cannot build the guest image: $tool is missing; apt-get install mmdebstrap e2fsprogs openssh-client" >&2
		exit 1
	fi
done

work=$(mktemp -d "${TMPDIR:-/tmp}/gpushare-image.XXXXXX")
trap 'rm -rf "$work"' EXIT

# The first mirror of the host's apt that carries the suite's distribution.
mirror=$(apt-get indextargets --format '$(ORIGIN)|$(REPO_URI)' 2>/dev/null |
	sed -n 's/^Debian|//p' | grep -v security | sort -u | head -n 1 || true)

aptopts=()
while read -r option; do
	aptopts+=(--aptopt="$option")
done < <(apt-config dump | grep -E '^Acquire::(Check-(Valid-Until|Date)|https?::Proxy(::[^ ]+)?|Retries) ' || true)

mmdebstrap --quiet --mode=root --variant=minbase --format=directory \
	--aptopt='APT::Install-Recommends "false"' "${aptopts[@]}" \
	--dpkgopt='path-exclude=/usr/share/doc/*' \
	--dpkgopt='path-exclude=/usr/share/man/*' \
	--dpkgopt='path-exclude=/usr/share/locale/*' \
	--include="$(IFS=,; echo "${packages[*]}")" \
	"$suite" "$work/root" ${mirror:+"$mirror"}

root=$work/root
echo gpushare-lab >"$root/etc/hostname"
echo "127.0.0.1 localhost gpushare-lab" >"$root/etc/hosts"
# A machine id keeps the first boot from being a "first boot", which would
# preset every unit of the distribution.
echo 6770757368617265676775657374766d >"$root/etc/machine-id"
echo "LABEL=labroot / ext4 defaults 0 0" >"$root/etc/fstab"

# Ordinary users of the checks, without a valid password.
for person in alice:2001 bob:2002 carol:2003; do
	chroot "$root" useradd --create-home --shell /bin/bash --uid "${person#*:}" "${person%:*}"
done
# They log in by ssh with one key, which belongs to root.
ssh-keygen -q -t ed25519 -N "" -C lab -f "$work/key"
install -D -m 0600 "$work/key" "$root/root/.ssh/id_ed25519"
for person in alice bob carol; do
	install -d -m 0700 "$root/home/$person/.ssh"
	install -m 0600 "$work/key.pub" "$root/home/$person/.ssh/authorized_keys"
	chroot "$root" chown -R "$person:$person" "/home/$person/.ssh"
done
printf 'StrictHostKeyChecking accept-new\nLogLevel ERROR\n' >"$root/root/.ssh/config"

# An emulated processor needs minutes to compile the profiles of other programs.
find "$root/etc/apparmor.d" -mindepth 1 -maxdepth 1 ! -name abi ! -name abstractions ! -name tunables -exec rm -rf {} +
# A denial is a line of the kernel's log. None is left out because there were many, and no daemon of audit has it instead, for
# which the kernel would count each call of each process.
printf 'kernel.printk_ratelimit = 0\n' >"$root/etc/sysctl.d/91-denials.conf"
mkdir -p "$root/etc/systemd/journald.conf.d"
printf '[Journal]\nAudit=no\n' >"$root/etc/systemd/journald.conf.d/lab.conf"
ln -sf /dev/null "$root/etc/systemd/system/systemd-journald-audit.socket"

# Nothing else may run while the checks measure.
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \
	fstrim.timer systemd-tmpfiles-clean.timer getty@tty1.service systemd-networkd-wait-online.service \
	netavark-dhcp-proxy.socket netavark-dhcp-proxy.service ldconfig.service systemd-journal-catalog-update.service \
	systemd-update-done.service systemd-binfmt.service systemd-pcrphase.service \
	podman-auto-update.timer podman.socket podman-restart.service podman-clean-transient.service; do
	ln -sf /dev/null "$root/etc/systemd/system/$unit"
done

# A phase starts them.
rm -f "$root"/etc/systemd/system/multi-user.target.wants/{munge,slurmctld,slurmd,containerd}.service

# No reload and no login may start a unit that no check needs.
mkdir -p "$root/etc/systemd/system-generators" "$root/etc/systemd/user-generators"
for generator in podman-system-generator systemd-ssh-generator systemd-gpt-auto-generator systemd-cryptsetup-generator \
	systemd-getty-generator systemd-hibernate-resume-generator systemd-integritysetup-generator systemd-rc-local-generator \
	systemd-run-generator systemd-system-update-generator systemd-sysv-generator systemd-tpm2-generator systemd-veritysetup-generator; do
	ln -sf /dev/null "$root/etc/systemd/system-generators/$generator"
done
for generator in podman-user-generator systemd-xdg-autostart-generator; do
	ln -sf /dev/null "$root/etc/systemd/user-generators/$generator"
done
rm -f "$root"/usr/lib/systemd/user/*.target.wants/{gpg-agent,dirmngr,podman}*
rm -f "$root"/etc/systemd/user/*.target.wants/{gpg-agent,dirmngr,podman}*

# An emulated processor is slow, and most of a boot is drivers for what no check touches.
for module in aesni_intel crypto_simd cryptd ghash_clmulni_intel polyval_clmulni sha1_ssse3 sha256_ssse3 sha512_ssse3 \
	crc32_pclmul crct10dif_pclmul powernow_k8 acpi_cpufreq ahci libahci libata sr_mod sg sd_mod scsi_mod psmouse serio_raw \
	button evdev input_leds pcspkr i2c_i801 lpc_ich iTCO_wdt drm drm_kms_helper simpledrm rapl intel_rapl_msr \
	intel_pmc_core virtio_rng qemu_fw_cfg floppy parport_pc; do
	printf 'blacklist %s\ninstall %s /bin/true\n' "$module" "$module"
done >"$root/etc/modprobe.d/lab.conf"
for unit in modprobe@drm.service modprobe@efi_pstore.service systemd-pstore.service dev-hugepages.mount \
	sys-kernel-debug.mount sys-kernel-tracing.mount systemd-random-seed.service; do
	ln -sf /dev/null "$root/etc/systemd/system/$unit"
done

# The kernel calls modprobe each time a device node without a driver is opened.
echo "kernel.modprobe =" >"$root/etc/sysctl.d/90-lab.conf"

# A power-off that waits 90 s for a frozen process must fail, not wait.
mkdir -p "$root/etc/systemd/system.conf.d"
printf '[Manager]\nDefaultTimeoutStopSec=30s\n' >"$root/etc/systemd/system.conf.d/lab.conf"

# The second disk has the checks; their report leaves through a virtio port.
cat >"$root/usr/local/sbin/gpushare-lab" <<'LAB'
#!/bin/bash
set -u
exec >>/dev/ttyS0 2>&1
rm -rf /opt/lab; mkdir -p /opt/lab
for path in /dev/disk/by-id/virtio-lab /dev/virtio-ports/gpushare.lab /dev/virtio-ports/gpushare.journal; do
	until [ -e "$path" ] || [ "$SECONDS" -gt 60 ]; do sleep 0.1; done
done
tar -xf /dev/disk/by-id/virtio-lab -C /opt/lab
/opt/lab/guest/main.sh
systemctl --no-block poweroff
LAB
chmod 0755 "$root/usr/local/sbin/gpushare-lab"
cat >"$root/etc/systemd/system/gpushare-lab.service" <<'UNIT'
[Unit]
Description=Checks of the gpushare VM lab
After=dbus.service systemd-logind.service systemd-user-sessions.service
Wants=dbus.service

[Service]
Type=simple
ExecStart=/usr/local/sbin/gpushare-lab
KillMode=process
TimeoutStopSec=5s

[Install]
WantedBy=multi-user.target
UNIT
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -sf ../gpushare-lab.service "$root/etc/systemd/system/multi-user.target.wants/gpushare-lab.service"

# A minimal initrd: three modules and one command. The distribution's searches for every possible disk.
kernel=$(basename "$root"/lib/modules/*)
early=$work/early
mkdir -p "$early/bin" "$early/dev" "$early/proc" "$early/sys" "$early/root"
cp "$root/bin/busybox" "$early/bin/busybox"
for module in virtio_pci virtio_blk crc32c_generic ext4; do
	chroot "$root" modprobe --quiet --show-depends --set-version "$kernel" --ignore-install "$module" || true
done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' | while read -r module; do
	name=$(basename "$module")
	case $name in
	*.xz) chroot "$root" xz -dc "$module" >"$early/${name%.xz}" ;;
	*) cp "$root$module" "$early/$name" ;;
	esac
	echo "${name%.xz}" >>"$early/modules"
done
cat >"$early/init" <<'INIT'
#!/bin/busybox sh
busybox mount -t proc proc /proc
busybox mount -t devtmpfs dev /dev
while read -r module; do busybox insmod "/$module"; done </modules
until disk=$(busybox findfs LABEL=labroot 2>/dev/null); do busybox sleep 0.1; done
busybox mount -t ext4 -o rw "$disk" /root
busybox mount -o move /dev /root/dev
busybox umount /proc
exec busybox switch_root /root /sbin/init
INIT
chmod 0755 "$early/init"

mkdir -p "$out"
cp "$root"/boot/vmlinuz-* "$out/vmlinuz"
mv "$early" "$root/early"
chroot "$root" sh -c "cd /early && find . | cpio --quiet -o -H newc" >"$out/initrd"
rm -rf "$root/early"
rm -f "$root"/boot/initrd.img-*
mke2fs -q -t ext4 -L labroot -d "$root" -E root_owner=0:0 "$out/root.img.new" "$size"
mv "$out/root.img.new" "$out/root.img"
