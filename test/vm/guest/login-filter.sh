# What the phases of the login filter share: which user may open a GPU from which cgroup.
closed=$state/closed.yaml
logins=/user.slice

make_closed() {
	sed -e 's/^  enforce: on$/  enforce: on\n  isolation: {logins: closed}/' \
		-e 's/^  - name: vision$/  - name: vision\n    adopt: {units: {lab-notebook.service: big, lab-second.service: big}}/' "$spec" >"$closed"
	grep -q '^  isolation: {logins: closed}$' "$closed" || die "the spec of the lab has another form: the login filter was not added"
	grep -q '^    adopt:' "$closed" || die "the spec of the lab has another form: no unit was added"
}
# open_as USER CGROUP NODE: as open_in, for a process of a user. Root puts it there; a session of that user would do as well.
open_as() {
	bash -c 'echo $$ >"$1/cgroup.procs" && exec setpriv --reuid "$2" --regid "$2" --clear-groups bash -c "$3" opens "$4"' place "$cgroot$2" "$1" "$opens" "$3" 2>&1
}
# login_opens USER NODE...: in one login, because a login costs seconds here; what each node gives, in one line.
login_opens() {
	login "$1" "bash -c '$opens' opens ${*:2}" 2>&1 | xargs
}
said() {
	case $1 in
	*"No such device or address"*) echo through ;;
	*"Operation not permitted"*) echo denied ;;
	*) echo "${1:-opened}" ;;
	esac
}
# GPUs 0 to 3 are managed, GPU 4 is not.
filter_active() {
	want "what a login of alice opens of GPUs 0 to 4" "$(login_opens alice $root/dev/nvidia{0,1,2,3,4})" "denied denied denied denied through"
}
no_filter() {
	[ "$(login_opens alice $root/dev/nvidia1)" = through ]
}
filter_conditions() { field '[.node.conditions // [] | .[] | select(.kind == "login-filter") | .message] | join("; ")'; }
