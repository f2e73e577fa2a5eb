package node

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/harness"
)

// Groups of the directory of these tests.
const (
	gidAdmins    = 471201
	gidObservers = 471202
	gidBlue      = 471203
)

// The columns of the table.
const (
	root0 = iota
	adminGroup
	observerGroup
	member
	colleague // of the same tenant; the lease belongs to member
	anothers  // a member of another tenant
	withoutRole
	namespaceRoot // no role; root in a user namespace
	columns
)

func columnNames() [columns]string {
	return [columns]string{
		"root",
		"admin group",
		"observer group",
		"member",
		"colleague",
		"another tenant's member",
		"no role",
		"root in a user namespace",
	}
}

func callers() [columns]person {
	return [columns]person{
		root0:         {},
		adminGroup:    {uid: 471210, gid: 471210, groups: []string{strconv.Itoa(gidAdmins)}},
		observerGroup: {uid: 471211, gid: 471211, groups: []string{strconv.Itoa(gidObservers)}},
		member:        {uid: 471212, gid: 471212},
		colleague:     {uid: 471213, gid: 471213},
		anothers:      {uid: 471214, gid: 471214, groups: []string{strconv.Itoa(gidBlue)}},
		withoutRole:   {uid: 471215, gid: 471215},
		namespaceRoot: {uid: 471216, gid: 471216, inside: true},
	}
}

func peopleDirectory() string {
	return answers("gpushare-admin:*:471201:admin", "gpushare:*:471202:observer", "blue:*:471203:another",
		"admin:*:471210:471210::/:/bin/sh", "observer:*:471211:471211::/:/bin/sh", "another:*:471214:471214::/:/bin/sh",
		"member:*:471212:471212::/:/bin/sh", "colleague:*:471213:471213::/:/bin/sh")
}

const rolesSpec = `version: v1
node: {enforce: on}
gpus:
  - {select: {index: 2}, mode: timeslice}
  - {select: {index: 3}, mode: timeslice}
tenants:
  - name: red
    members: {users: [member, colleague]}
    grants: [{name: part, timeslice: {share: 30%, gpu_memory: 1GiB}, gpus: {index: 2}}]
  - name: blue
    members: {groups: [blue]}
    grants: [{name: part, timeslice: {share: 30%, gpu_memory: 1GiB}, gpus: {index: 2}}]
`

// cell is one route as one request, with the status that each column gets, in their order.
type cell struct {
	route string
	path  string // {red} is replaced by a running lease of member; empty: the path of the route
	body  string
	want  [columns]int
}

// table has the expected status of each route for each column: root, admin group, observer group, member, colleague, member
// of another tenant, no role, root in a user namespace. A route without a row fails.
func table() []cell {
	const invalid, forbidden, missing = 400, 403, 404
	admins := func(ok int) [columns]int {
		return [columns]int{ok, ok, forbidden, forbidden, forbidden, forbidden, forbidden, forbidden}
	}
	adminsAndObservers := func(ok int) [columns]int {
		return [columns]int{ok, ok, ok, forbidden, forbidden, forbidden, forbidden, forbidden}
	}
	readers := func(ok int) [columns]int {
		return [columns]int{ok, ok, ok, ok, ok, ok, forbidden, forbidden}
	}
	return []cell{
		{route: "GET /v1", want: [columns]int{200, 200, 200, 200, 200, 200, 200, 200}},
		{route: "GET /v1/status", want: readers(200)},
		{route: "GET /metrics", want: readers(200)},
		{route: "GET /v1/events", want: readers(200)},
		{route: "GET /v1/events/kept", want: readers(200)},
		{route: "GET /v1/spec", want: adminsAndObservers(200)},
		{route: "PUT /v1/spec", path: "/v1/spec?check=1", body: rolesSpec, want: admins(200)},
		{route: "PUT /v1/spec", path: "/v1/spec", body: rolesSpec, want: admins(200)}, // It changes nothing.
		{route: "GET /v1/history", want: adminsAndObservers(200)},
		{route: "GET /v1/history/{generation}", path: "/v1/history/99", want: adminsAndObservers(missing)},
		{route: "GET /v1/plan", want: adminsAndObservers(200)},
		{route: "GET /v1/operations", want: adminsAndObservers(200)},
		{route: "GET /v1/operations/{id}", path: "/v1/operations/none", want: adminsAndObservers(missing)},
		{route: "GET /v1/doctor", want: adminsAndObservers(200)},
		{route: "GET /v1/mig", want: adminsAndObservers(200)},
		{route: "POST /v1/mig/import", body: `{"gpu":"99","start":[0]}`, want: admins(missing)},
		{route: "POST /v1/mig/remove", body: `{"gpu":"99","start":[0]}`, want: admins(missing)},
		{route: "GET /v1/audit", want: admins(200)},
		{route: "GET /v1/audit/verify", want: admins(200)},
		{route: "GET /v1/counters", want: adminsAndObservers(200)},
		{route: "GET /v1/usage", want: readers(200)},
		{route: "POST /v1/reload", want: admins(200)},
		{route: "POST /v1/conditions/{id}/ack", path: "/v1/conditions/none/ack", body: `{"for":"2h"}`, want: admins(missing)},
		{route: "POST /v1/conditions/{id}/unack", path: "/v1/conditions/none/unack", want: admins(missing)},
		{route: "POST /v1/tenants/{name}/freeze", path: "/v1/tenants/none/freeze", want: admins(missing)},
		{route: "POST /v1/tenants/{name}/thaw", path: "/v1/tenants/none/thaw", want: admins(missing)},
		{route: "POST /v1/unmanage", path: "/v1/unmanage?check=1", want: admins(200)},
		{route: "POST /v1/gpus/{id}/retry", path: "/v1/gpus/2/retry", want: admins(200)},
		{route: "POST /v1/gpus/{id}/cordon", path: "/v1/gpus/99/cordon", body: `{"reason":"a test"}`, want: admins(missing)},
		{route: "POST /v1/gpus/{id}/uncordon", path: "/v1/gpus/99/uncordon", want: admins(missing)},
		{route: "GET /v1/maintenance", want: adminsAndObservers(200)},
		{route: "POST /v1/maintenance", body: `{"reason":"a test"}`, want: admins(200)},
		{route: "POST /v1/maintenance/off", want: admins(200)},
		{route: "POST /v1/gpus/{id}/retry", path: "/v1/gpus/99/retry", want: admins(missing)},
		{route: "GET /v1/mps/{id}", path: "/v1/mps/99", want: adminsAndObservers(missing)},
		{route: "GET /v1/mps/{id}/log", path: "/v1/mps/99/log", want: admins(missing)},
		{route: "POST /v1/mps/{id}/restart", path: "/v1/mps/99/restart?check=1", want: admins(missing)},
		{route: "POST /v1/mps/{id}/drain", path: "/v1/mps/99/drain", want: admins(missing)},
		{route: "POST /v1/mps/{id}/resume", path: "/v1/mps/99/resume", want: admins(missing)},
		{
			route: "POST /v1/leases", body: `{"tenant":"red","command":["true"]}`,
			want: [columns]int{200, 200, forbidden, 200, 200, forbidden, forbidden, forbidden},
		},
		{
			route: "POST /v1/leases", body: `{"tenant":"none","command":["true"]}`, // No answer shows which tenants exist.
			want: [columns]int{missing, missing, forbidden, forbidden, forbidden, forbidden, forbidden, forbidden},
		},
		{
			route: "DELETE /v1/leases/{id}", path: "/v1/leases/{red}",
			want: [columns]int{200, 200, forbidden, 200, forbidden, missing, forbidden, forbidden},
		},
		{
			route: "DELETE /v1/leases/{id}", path: "/v1/leases/none",
			want: [columns]int{missing, missing, forbidden, missing, missing, missing, forbidden, forbidden},
		},
		{
			// Only root may attach the first process, and it can be in no lease.
			route: "POST /v1/leases/attach", body: `{"tenant":"red","pid":1}`,
			want: [columns]int{400, 400, forbidden, forbidden, forbidden, forbidden, forbidden, forbidden},
		},
		{route: "POST /v1/engine/leases", body: `{"key":"42"}`, want: admins(invalid)}, // It names no engine.
		{route: "GET /v1/engine/leases/{key}", path: "/v1/engine/leases/slurm:none", want: admins(missing)},
		{route: "GET /v1/engine/leases/{key}/cdi", path: "/v1/engine/leases/slurm:none/cdi", want: admins(missing)},
		{route: "DELETE /v1/engine/leases/{key}", path: "/v1/engine/leases/slurm:none", want: admins(missing)},
		{route: "POST /v1/containers", body: `{"tenant":"none","grant":"none"}`, want: admins(missing)},
		{
			route: "POST /v1/leases/{id}/release", path: "/v1/leases/{red}/release", // A lease of run: it was not attached.
			want: [columns]int{400, 400, forbidden, 400, 400, missing, forbidden, forbidden},
		},
		{
			route: "GET /v1/explain", path: "/v1/explain?of=red",
			want: [columns]int{200, 200, 200, 200, 200, missing, forbidden, forbidden},
		},
		{route: "GET /v1/explain", path: "/v1/explain?of=none", want: readers(missing)},
		{
			route: "POST /v1/leases/attach", body: `{}`,
			want: [columns]int{invalid, invalid, forbidden, invalid, invalid, invalid, forbidden, forbidden},
		},
		{
			route: "POST /v1/leases/attach", body: `{"pid":1}`, // A process of root, which members may not attach. Admins name a tenant.
			want: [columns]int{invalid, invalid, forbidden, forbidden, forbidden, forbidden, forbidden, forbidden},
		},
		{
			route: "POST /v1/leases/{id}/release", path: "/v1/leases/{red}/release", // It was not attached.
			want: [columns]int{invalid, invalid, forbidden, invalid, invalid, missing, forbidden, forbidden},
		},
		{
			route: "GET /v1/leases/{id}/logs", path: "/v1/leases/{red}/logs", // It was not detached.
			want: [columns]int{invalid, invalid, forbidden, invalid, forbidden, missing, forbidden, forbidden},
		},
		{route: "GET /v1/leases", want: readers(200)},
		{route: "GET /v1/leases", path: "/v1/leases?all=1", want: readers(200)},
		{route: "GET /v1/idle", want: readers(200)},
		{
			route: "GET /v1/explain", path: "/v1/explain?of=red",
			want: [columns]int{200, 200, 200, 200, 200, missing, forbidden, forbidden},
		},
		{
			route: "GET /v1/explain", path: "/v1/explain?of={red}",
			want: [columns]int{200, 200, 200, 200, 200, missing, forbidden, forbidden},
		},
		{route: "GET /v1/mig", want: adminsAndObservers(200)},
		{
			route: "GET /v1/env", // No caller runs in a lease.
			want:  [columns]int{missing, missing, forbidden, missing, missing, missing, forbidden, forbidden},
		},
	}
}

// routesOfTheDaemon are read from its table, which no other package may import.
func routesOfTheDaemon(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "daemon/routes.go"))
	if err != nil {
		t.Fatal(err)
	}
	verbs := map[string]string{"get": "GET", "put": "PUT", "post": "POST", "remove": "DELETE"}
	var out []string
	for _, m := range regexp.MustCompile(`\{\s*(get|put|post|remove),\s*"([^"]+)"`).FindAllStringSubmatch(string(b), -1) {
		out = append(out, verbs[m[1]]+" "+m[2])
	}
	return out
}

func TestEveryRouteHasRoles(t *testing.T) {
	routes, rows := routesOfTheDaemon(t), table()
	if len(routes) < 10 {
		t.Fatalf("only %d routes were found: the reading is broken", len(routes))
	}
	for _, r := range routes {
		if !slices.ContainsFunc(rows, func(c cell) bool { return c.route == r }) {
			t.Errorf("%s has no row in the table of this file: add the status of each kind of caller", r)
		}
	}
	for _, c := range rows {
		if !slices.Contains(routes, c.route) {
			t.Errorf("%s is not a route of the daemon", c.route)
		}
		if slices.Contains(c.want[:], 0) {
			t.Errorf("%s has no status for some callers", c.route)
		}
	}
}

// Every caller requests every route from a process with real credentials, and no answer contains data of another tenant.
func TestRolesOnTheSocket(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming other users needs root")
	}
	for _, p := range []string{"setpriv", "unshare"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("needs %s (util-linux)", p)
		}
	}
	n := inDirectory(t)
	directory(t, n, peopleDirectory())
	if err := n.Start(soon(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n, rolesSpec)
	who, names := callers(), columnNames()
	if out, err := who[namespaceRoot].command(soon(t), "id", "-u").Output(); err != nil || strings.TrimSpace(string(out)) != "0" {
		t.Skipf("this host gives no user namespace to users: %s %v", out, err)
	}
	jobs := map[int]*harness.Job{}
	// lease starts a lease of a column, with a command that identifies its tenant.
	lease := func(column int, secret string) string {
		t.Helper()
		job := jobs[column]
		if job != nil {
			select {
			case <-job.Done():
			default:
				return leaseOf(job)
			}
		}
		cmd := who[column].command(
			t.Context(),
			filepath.Join(n.Bin, "gpushare"),
			"run",
			"-q",
			"--",
			"sh",
			"-c",
			`echo "lease=$GPUSHARE_LEASE."; exec sleep 600 # `+secret,
		)
		cmd.Env = append(cmd.Env, "GPUSHARE_SOCKET="+n.Socket())
		job, err := n.Spawn(cmd)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(job.Kill)
		if err := job.AwaitLine(soon(t), "."); err != nil {
			t.Fatal(err)
		}
		jobs[column] = job
		return leaseOf(job)
	}
	lease(anothers, "secret-of-blue")
	var askers [columns]*requester
	for column, p := range who {
		askers[column] = p.requester(t, n)
	}
	for _, c := range table() {
		for column, p := range who {
			red := lease(member, "secret-of-red")
			method, path, _ := strings.Cut(c.route, " ")
			if c.path != "" {
				path = strings.ReplaceAll(c.path, "{red}", red)
			}
			var r reply
			if c.route == "POST /v1/leases" { // The caller of this request becomes the lease.
				r = p.request(t, n, method, path, c.body)
			} else {
				r = askers[column].request(t, method, path, c.body)
			}
			if r.Status != c.want[column] {
				t.Errorf("%s %s of %s is answered with %d, want %d: %s", method, path, names[column], r.Status, c.want[column], r.Body)
			}
			if r.Status == 403 && !strings.Contains(r.Body, `"denied"`) {
				t.Errorf("%s %s of %s is refused without a reason: %s", method, path, names[column], r.Body)
			}
			if r.Status == 200 && method == http.MethodDelete {
				<-jobs[member].Done()
			}
			if (column == root0 || column == member) && c.path == "/v1/leases?all=1" && !strings.Contains(r.Body, "secret-of-red") {
				t.Errorf("%s %s does not show %s the whole command: %s", method, path, names[column], r.Body)
			}
			hidden := map[int][]string{
				observerGroup: {"secret-of-"}, member: {"secret-of-blue"}, colleague: {"secret-of-"}, anothers: {"secret-of-red", red},
				withoutRole: {"secret-of-", "red", "blue"}, namespaceRoot: {"secret-of-", "red", "blue"},
			}[column]
			for _, word := range hidden {
				if strings.Contains(r.Body, word) && !strings.Contains(path+c.body, word) { // It repeats the text of the request.
					t.Errorf("%s %s shows %s the word %q: %s", method, path, names[column], word, r.Body)
				}
			}
		}
	}
	s := status(t, n)
	if harness.Lease(s, "blue", "part") == nil {
		t.Errorf("the other tenant's lease did not survive: %+v", s.Leases)
	}
	if !slices.ContainsFunc(s.Tenants, func(t api.TenantStatus) bool { return t.Name == "red" }) {
		t.Error("the spec was changed")
	}
}

func leaseOf(job *harness.Job) string {
	_, rest, _ := strings.Cut(job.Output(), "lease=")
	id, _, _ := strings.Cut(rest, ".")
	return id
}
