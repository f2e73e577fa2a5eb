# What the phases of the guard share: who may open a GPU from where.
guarded=$state/guarded.yaml
logins=/user.slice

make_guarded() {
	sed -e 's/^  enforce: on$/  enforce: on\n  guard: logins/' \
		-e 's/^  - name: vision$/  - name: vision\n    adopt: {units: {lab-notebook.service: big, lab-second.service: big}}/' "$spec" >"$guarded"
	grep -q '^  guard: logins$' "$guarded" || die "the spec of the lab has another form: no guard was added"
	grep -q '^    adopt:' "$guarded" || die "the spec of the lab has another form: no unit was added"
}
# open_as USER CGROUP NODE: as open_in, for a process of a user. Root puts it there; a session of his would do as well.
open_as() {
	said "$(bash -c 'echo $$ >"$1/cgroup.procs" && exec setpriv --reuid "$2" --regid "$2" --clear-groups bash -c "exec 3<>\"\$1\"" open "$3"' \
		open "$cgroot$2" "$1" "$3" 2>&1 || true)"
}
# login_opens USER NODE...: in one login, because a login costs seconds here; what each node gives, in one line.
login_opens() {
	local line out=
	while IFS= read -r line; do out+="$(said "$line") "; done < <(login "$1" "for n in ${*:2}; do bash -c \"exec 3<>\$n\" 2>&1 | tail -n 1 | grep . || echo opened; done" 2>&1)
	echo "${out% }"
}
said() {
	case $1 in
	*"No such device or address"*) echo through ;;
	*"Operation not permitted"*) echo denied ;;
	*) echo "${1:-opened}" ;;
	esac
}
# The managed GPUs are 0 to 3, and 4 is nobody's.
guard_stands() {
	want "what a login of alice opens of GPUs 0 to 4" "$(login_opens alice $root/dev/nvidia{0,1,2,3,4})" "denied denied denied denied through"
}
no_guard() {
	[ "$(login_opens alice $root/dev/nvidia1)" = through ]
}
guard_conditions() { field '[.node.conditions // [] | .[] | select(.kind == "guard") | .message] | join("; ")'; }
