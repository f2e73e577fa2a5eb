# What the phase about escapes and adoption shares.

# The spec of the product, with lines put below "node:" and below vision's members.
spec_with() { # spec_with "NODE LINE" "VISION LINE..."
	awk -v node="$1" -v vision="$2" '
		{ print }
		/^node:$/ && node != "" { print "  " node }
		/name: vision$/ { in_vision = 1 }
		in_vision && /members:/ { if (vision != "") { n = split(vision, l, ";"); for (i = 1; i <= n; i++) print "    " l[i] } in_vision = 0 }
	' "$spec" >/run/lab/escape.yaml
	gpushare apply -f /run/lab/escape.yaml >/run/lab/escape.apply 2>&1 || die "the spec is refused: $(cat /run/lab/escape.apply)"
}
adopted() { # adopted HELD prints what is adopted: user, unit, grant
	field ".leases[] | select(.origin == \"$1\" and .state == \"running\") | \"\(.user // \"-\") \(.isolation.unit) \(.grant)\""
}
is_adopted() { [ "$(adopted "$1")" = "$2" ]; }
memory_of() { cat "$cgroot/user.slice/user-$1.slice/memory.max"; }
has_memory() { [ "$(memory_of "$1")" = "$2" ]; }

# The user's own service manager takes a process over, as with systemd-run --user --scope.
escape() { # escape USER PID SCOPE
	setpriv --reuid "$1" --regid "$1" --init-groups env -i PATH=/usr/bin:/bin XDG_RUNTIME_DIR="/run/user/$(id -u "$1")" \
		DBUS_SESSION_BUS_ADDRESS="unix:path=/run/user/$(id -u "$1")/bus" \
		busctl --user call $manager StartTransientUnit "ssa(sv)a(sa(sv))" "$3" fail 1 PIDs au 1 "$2" 0
}

# A job of alice in a lease: a shell that runs SCRIPT.
start_member() { # start_member SCRIPT leaves its process id in $pid
	rm -f /run/lab/member.out # So that no output of an earlier job is read.
	setpriv --reuid alice --regid alice --init-groups env -i PATH=/usr/bin:/bin XDG_RUNTIME_DIR=/run/user/2001 \
		DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/2001/bus \
		gpushare run -t vision --grant dev -- bash -c "echo in; $1" >/run/lab/member.out 2>&1 </dev/null &
	pid=$!
	disown
	until_true 30 grep -qs '^in' /run/lab/member.out
}
# A parent that does not wait for it keeps a process that has exited in the list.
has_exited() { ended "$1" || grep -qs '^State:[[:space:]]*Z' "/proc/$1/status"; }
# within one process-list period, and what an emulated processor adds
want_ended() { # want_ended WHAT PID SINCE_MS
	until_true 20 has_exited "$2"
	note "$1 was ended $(($(uptime_ms) - $3)) ms after it escaped"
}
