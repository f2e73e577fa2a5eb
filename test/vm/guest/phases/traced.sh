# A tracer outside of a lease keeps a killed process of the lease in its exit. The lease ends all the same if the tracer is its
# user's; if it is root's, the stop ends in time and names it.
# checks: own root

. /opt/lab/guest/product.sh
. /opt/lab/guest/escape.sh

# The tracer seizes the process in its argument (0x4206, PTRACE_SEIZE) with PTRACE_O_TRACEEXIT (0x40), and never continues it.
cat >/run/lab/tracer <<'END'
#!/usr/bin/perl
$SIG{TERM} = "IGNORE";
$| = 1;
syscall(101, 0x4206, shift() + 0, 0, 0x40) == 0 or die "cannot trace: $!\n";
print "traces\n";
sleep 600 while 1;
END
chmod 0755 /run/lab/tracer

# traced USER starts a lease of alice and a tracer of USER outside of it. It leaves the lease in $id, its process in $pid and the
# tracer in $tracer.
traced() {
	local scope
	scope=$(sysctl -n kernel.yama.ptrace_scope)
	trap "sysctl -q kernel.yama.ptrace_scope=$scope" EXIT # of this check, whether it passes or fails
	sysctl -q kernel.yama.ptrace_scope=0                  # Users may trace all of their processes.
	start_member "exec sleep 600"
	id=$(field ".leases[] | select(.pid == $pid) | .id")
	[ -n "$id" ] || die "no lease has process $pid: $(cat /run/lab/member.out)"
	until_true 10 named "$pid" sleep
	rm -f /run/lab/tracer.out # So that no output of an earlier tracer is read.
	exec_as "$1" /run/lab/tracer "$pid" >/run/lab/tracer.out 2>&1 </dev/null &
	tracer=$!
	disown
	until_true 20 grep -qs '^traces' /run/lab/tracer.out
	want "the tracer of the lease's process" "$(sed -n 's/^TracerPid:[[:space:]]*//p' "/proc/$pid/status")" "$tracer"
	case $(unit_of "$tracer") in
	*/gpushare.slice/*) die "the tracer is in a lease: $(unit_of "$tracer")" ;;
	esac
}
named() { [ "$(cat "/proc/$1/comm")" = "$2" ]; }
not_ended() { field "[.node.conditions[]? | select(.kind == \"lease-not-ended\") | .message] | join(\"; \")"; }
lease_ended() { [ -z "$(field ".leases[] | select(.id == \"$id\") | .id")" ]; }

check_own() {
	traced alice
	local began
	began=$(uptime_ms)
	as alice gpushare lease stop "$id"
	note "the traced lease was stopped in $(($(uptime_ms) - began)) ms"
	until_true 5 has_exited "$tracer"
	until_true 5 has_exited "$pid"
	lease_ended || die "the lease is still there"
	want "conditions" "$(not_ended)" ""
}

check_root() {
	traced root
	local began out code=0
	began=$(uptime_ms)
	out=$(gpushare lease stop "$id" 2>&1) || code=$?
	note "after $(($(uptime_ms) - began)) ms the stop exited with $code"
	want "the exit code of the stop" "$code" 5
	[[ $out == *"pid $pid (sleep) was killed and has not exited: it is traced by pid $tracer (tracer) of root"* ]] || die "the stop does not name the tracer: $out"
	[[ $out == *"kill -9 $tracer"* ]] || die "the stop does not say what helps: $out"
	[[ $(not_ended) == *"pid $tracer (tracer)"* ]] || die "the conditions are: $(not_ended)"
	[ -d "/proc/$tracer" ] || die "the tracer of root was stopped"
	kill -KILL "$tracer"
	until_true 60 lease_ended
	until_true 10 no_condition
}
no_condition() { [ -z "$(not_ended)" ]; }
