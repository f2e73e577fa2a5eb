# The tests of package systemd that need a real service manager, built by the host.
# checks: all_are_listed table drift many_slices slice scope out_of_memory programs services reload reexec

check_all_are_listed() {
	want "the tests that need a service manager" "$(adapter_tests)" "$(grep -ohP '^check_\w+\(\) \{ adapter_test \K\w+' /opt/lab/guest/phases/*adapter.sh | sort)"
}
adapter_tests() { /opt/lab/tests/systemd.test -test.list '^TestHost' | sort; }
adapter_test() { # adapter_test NAME [HOW]
	GPUSHARE_TEST_SYSTEMD=${2:-yes} /opt/lab/tests/systemd.test -test.run "^$1\$" -test.v >/run/lab/adapter.out 2>&1 || {
		cat /run/lab/adapter.out
		die "$1: $(sed -n '/_test.go:[0-9]*: /{/Adapter:/!{p;q}}' /run/lab/adapter.out)"
	}
	cat /run/lab/adapter.out
	sed -n 's/.*_test.go:[0-9]*: NOTE /NOTE /p' /run/lab/adapter.out
	grep -q "^--- PASS: $1" /run/lab/adapter.out || die "$1 did not run"
}

check_table() { adapter_test TestHostTable; }
check_drift() { adapter_test TestHostDriftIsCorrected; }
check_many_slices() { adapter_test TestHostManySlices; }
check_slice() { adapter_test TestHostSlice; }
check_scope() { adapter_test TestHostScope; }
check_out_of_memory() { adapter_test TestHostOutOfMemory; }
check_programs() { adapter_test TestHostProgram; }
check_services() { adapter_test TestHostServices; }
check_reload() { adapter_test TestHostReload; }
check_reexec() { adapter_test TestHostLifeAfterReexec; }
