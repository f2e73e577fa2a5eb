package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/cgroup"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/server/servertest"
	"github.com/gpushare/gpushare/test/scenarios"
)

// auditOf reads the audit through the API.
func auditOf(d *virtual, query string) (lines []api.AuditLine) {
	d.Helper()
	rec := servertest.Request(d.server.Handler(), &server.Peer{}, http.MethodGet, "/v1/audit?"+query, nil)
	for dec := json.NewDecoder(rec.Body); dec.More(); {
		var l api.AuditLine
		if err := dec.Decode(&l); err != nil {
			d.Fatal(err)
		}
		lines = append(lines, l)
	}
	return lines
}

// Every route that changes something is in the audit, with who did it; what only reads is not.
func TestEveryChangingRouteIsAudited(t *testing.T) {
	d := newVirtualWithUsers(t)
	for _, r := range d.routes() {
		if changes := r.Method != http.MethodGet; changes != (r.Audit.Name != "") {
			t.Errorf("%s %s: its action in the audit is %q", r.Method, r.Pattern, r.Audit.Name)
		}
	}
	h := d.server.Handler()
	path := strings.NewReplacer("{id}", "x", "{name}", "x", "{key}", "x")
	for uid, who := range map[int]string{1005: "a member of another tenant", 1009: "a user without a role"} {
		p := &server.Peer{UID: uid, GID: 1, Process: cgroup.Process{PID: 4711, Start: 1}}
		if uid == 1005 {
			p.GID = servertest.GidOther
		}
		for _, r := range d.routes() {
			if r.Audit.Name == "" || r.Pattern == "/v1/leases" || r.Pattern == "/v1/leases/attach" {
				continue
			}
			if w := servertest.Request(h, p, r.Method, path.Replace(r.Pattern), nil); w.Code != http.StatusForbidden &&
				w.Code != http.StatusNotFound {
				t.Fatalf("%s %s of %s is answered with %d", r.Method, r.Pattern, who, w.Code)
			}
			lines := auditOf(d, fmt.Sprint("user=", uid))
			if len(lines) == 0 {
				t.Fatalf("%s %s refused to %s is not in the audit", r.Method, r.Pattern, who)
			}
			l := lines[len(lines)-1]
			if l.What != r.Audit.Name || l.UID != uid || l.PID != 4711 || l.Role == "" ||
				l.Kind != api.KindDenied && l.Kind != api.KindNotFound ||
				l.Message == "" {
				t.Errorf("%s %s of %s: %+v", r.Method, r.Pattern, who, l)
			}
			if strings.Contains(r.Pattern, "{") && l.Lease+l.GPU+l.Tenant != "x" {
				t.Errorf("%s %s: the line does not say about what: %+v", r.Method, r.Pattern, l)
			}
		}
	}
}

// Actions of an administrator, with the generation that resulted.
func TestActionsInTheAudit(t *testing.T) {
	w := newVirtual(t, nil, scenarios.Board{Model: "a100-sxm4-40gb"})
	w.startDaemon()
	spec := "version: v1\nnode: {enforce: on}\ngpus: [{select: {all: true}, mode: exclusive}]\ntenants: [{name: red, members: {users: [root]}, grants: [{name: whole, exclusive: 1}]}]\n"
	if _, _, e := w.apply(spec, ""); e != nil {
		t.Fatal(e)
	}
	if _, _, e := w.apply(spec, "?check=1"); e != nil { // no action
		t.Fatal(e)
	}
	if _, _, e := w.apply("version: v1\nbase: 7\n", ""); e == nil {
		t.Fatal("a stale spec is accepted")
	}
	if e := w.do(http.MethodPost, "/v1/tenants/red/freeze", "", nil); e == nil {
		t.Error("a tenant is frozen without a freezer")
	}
	for _, target := range []string{"/v1/tenants/red/thaw", "/v1/gpus/0/retry", "/v1/reload"} {
		if e := w.do(http.MethodPost, target, "", nil); e != nil {
			t.Errorf("%s: %v", target, e)
		}
	}
	var res api.ApplyResult
	if e := w.do(http.MethodPost, "/v1/unmanage", "", &res); e != nil {
		t.Fatal(e)
	}
	w.waitIdle(res.Operation)
	var got []string
	for _, l := range auditOf(w, "") {
		if l.UID == 0 && l.Role == "admin" {
			got = append(got, fmt.Sprint(l.What, " ", l.Kind, " ", l.Generation))
		}
	}
	if want := []string{
		"apply  1",
		"apply conflict 1",
		"freeze conflict 1",
		"thaw  1",
		"retry  1",
		"reload  1",
		"unmanage  2",
	}; !slices.Equal(got, want) {
		t.Errorf("the audit has %q, want %q", got, want)
	}
	var v api.AuditVerification
	if e := w.do(http.MethodGet, "/v1/audit/verify", "", &v); e != nil || v.Broken != nil || v.Entries == 0 || v.SHA256 == "" {
		t.Errorf("%+v, %v", v, e)
	}
}

// A flood of requests of one user does not push the lines of others out: it is counted, and bounded in bytes.
func TestAFloodIsBoundedInTheAudit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newVirtualWithUsers(t)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		d.tasks.Go(func() { d.RunAudit(ctx) })
		h := d.server.Handler()
		member := servertest.Peers()["another's member"]
		for range 5000 {
			servertest.Request(h, member, http.MethodDelete, "/v1/leases/"+strings.Repeat("x", 300), nil)
			servertest.Request(h, member, http.MethodGet, "/v1/status?nonsense=1", nil)
			servertest.Request(h, member, http.MethodGet, "/v1/audit", nil)
		}
		for uid := range 400 { // uids of a user namespace
			servertest.Request(h, &server.Peer{UID: 100_000 + uid, GID: 1}, http.MethodGet, "/v1/status", nil)
		}
		time.Sleep(61 * time.Second) // virtual
		synctest.Wait()
		lines, bytes := auditOf(d, "user=1005"), 0
		counts := map[string]uint64{}
		for _, l := range lines {
			bytes += len(l.Message) + len(l.Lease) + 200
			counts[l.What] += max(1, l.Count)
		}
		if bytes > 300<<10 {
			t.Errorf("one user added %d bytes in %d lines", bytes, len(lines))
		}
		time.Sleep(time.Hour) // virtual: what exceeds the user's share is written at the latest then
		synctest.Wait()
		total := uint64(0)
		for _, l := range auditOf(d, "user=1005") {
			total += max(1, l.Count)
		}
		if total != 15_000 {
			t.Errorf("the lines stand for %d requests, want 15000: %v", total, counts)
		}
		unknown := uint64(0)
		for _, l := range auditOf(d, "") {
			if l.Role == "none" {
				unknown += max(1, l.Count)
			}
		}
		if unknown != 400 {
			t.Errorf("the lines of callers without a role stand for %d requests", unknown)
		}
		stop()
		d.tasks.Wait()
	})
}

// Lines that cannot be written are a condition.
func TestLostLinesOfTheAudit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newVirtualWithUsers(t)
		if err := d.Audits.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		d.tasks.Go(func() { d.RunAudit(ctx) })
		servertest.Request(d.server.Handler(), servertest.Peers()["root"], http.MethodPost, "/v1/reload", nil)
		synctest.Wait()
		if !slices.ContainsFunc(d.Conditions.List(), func(c api.Condition) bool {
			return c.Kind == "audit" && strings.HasSuffix(c.Message, ": 1") && c.Hint != ""
		}) {
			t.Errorf("the conditions are %+v", d.Conditions.List())
		}
		stop()
		d.tasks.Wait()
	})
}

// A file of the audit that is removed while the daemon runs is a condition and a line of the audit; the newest line is in the
// journal and in the state, so that a removed end is also found after a start; and a line of the journal is compared.
func TestRemovedFilesOfTheAudit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newVirtualWithUsers(t)
		h := func() http.Handler { return d.server.Handler() }
		reload := func() { servertest.Request(h(), servertest.Peers()["root"], http.MethodPost, "/v1/reload", nil) }
		run := func() (stop func()) {
			ctx, stop := context.WithCancel(t.Context())
			d.tasks.Go(func() { d.RunAudit(ctx) })
			return stop
		}
		says := func(about, want string) {
			t.Helper()
			if !slices.ContainsFunc(d.Conditions.List(), func(c api.Condition) bool {
				return c.Kind == "audit" && strings.Contains(c.Message, want) && strings.Contains(c.Hint, "audit --verify")
			}) {
				t.Errorf("%s: the conditions are %+v", about, d.Conditions.List())
			}
		}
		verification := func(query string) (v api.AuditVerification) {
			t.Helper()
			if e := d.do(http.MethodGet, "/v1/audit/verify"+query, "", &v); e != nil {
				t.Fatal(e)
			}
			return v
		}
		stop := run()
		reload()
		time.Sleep(61 * time.Minute) // virtual
		synctest.Wait()
		kept := d.state.Stored().Audit
		if kept == nil || !strings.Contains(d.log.String(), fmt.Sprintf("number=%d sha256=%s", kept.Number, kept.SHA256)) {
			t.Fatalf("the state has line %+v, and the journal not", kept)
		}
		if v := verification(""); v.Broken != nil || !v.Anchored || v.AnchoredSince != 0 {
			t.Errorf("%+v", v)
		}
		file := filepath.Join(d.settings.StateDir, "audit", "audit-000001.log")
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute) // virtual
		synctest.Wait()
		says("while it runs", "audit-000001.log was removed while gpushared ran")
		lines := auditOf(d, "")
		if n := len(lines); n == 0 || lines[n-1].What != "audit" || !strings.Contains(lines[n-1].Message, "was removed") {
			t.Errorf("the audit has %+v", lines)
		}
		if v := verification(""); v.Broken == nil || v.Findings[0].First != 1 || v.Findings[0].Last < kept.Number ||
			!strings.Contains(v.Broken.Message, "missing: audit-000001.log") {
			t.Errorf("%+v", v)
		}
		for query, want := range map[string]string{
			fmt.Sprintf("?anchor=%d:%s", kept.Number, kept.SHA256): "cannot be compared",
			"?anchor=1000:" + kept.SHA256:                          "line 1000 was written",
		} {
			if v := verification(query); !slices.ContainsFunc(
				v.Findings, func(f api.AuditFinding) bool { return strings.Contains(f.Message, want) },
			) {
				t.Errorf("%s: %+v", query, v)
			}
		}
		if e := d.do(http.MethodGet, "/v1/audit/verify?anchor=x", "", nil); e == nil || e.Kind != api.KindInvalid || e.Hint == "" {
			t.Errorf("a wrong anchor: %v", e)
		}
		stop()
		d.end()

		// The end and the anchor are removed while it does not run.
		files, err := filepath.Glob(filepath.Join(d.dir, "state", "audit", "*.log"))
		if err != nil || len(files) != 1 {
			t.Fatal(files, err)
		}
		for _, f := range append(files, filepath.Join(d.dir, "state", "audit.anchor")) {
			if err := os.Remove(f); err != nil {
				t.Fatal(err)
			}
		}
		d.startDaemon()
		stop = run()
		synctest.Wait()
		says("after a start", "the anchor of the audit was removed")
		says("after a start", "of the audit are missing: they were removed while gpushared did not run")
		stop()
		d.tasks.Wait()
	})
}
