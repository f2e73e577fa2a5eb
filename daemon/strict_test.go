package daemon

import (
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/daemon/server/servertest"
)

// A request with an error in it is refused by every route before its handler: one that was to check a change would carry it out.
func TestEveryRouteRefusesWhatItDoesNotKnow(t *testing.T) {
	d := newVirtualWithUsers(t)
	h, root := d.server.Handler(), servertest.Peers()["root"]
	refused := func(t *testing.T, method, target, body, want string) {
		t.Helper()
		w := servertest.Request(h, root, method, target, strings.NewReader(body))
		e := servertest.ErrorOf(t, w)
		if text := e.Message + "\n" + e.Hint; w.Code != http.StatusBadRequest || e.Kind != api.KindInvalid ||
			!strings.Contains(text, want) ||
			e.Hint == "" {
			t.Errorf("%s %s %s is answered with %d %+v, want a hint and %q", method, target, body, w.Code, e, want)
		}
	}
	for _, r := range d.routes() {
		t.Run(r.Method+" "+r.Pattern, func(t *testing.T) {
			path := strings.NewReplacer("{id}", "x", "{name}", "x").Replace(r.Pattern)
			body := ""
			if r.Body != nil {
				body = "{}"
			}
			refused(t, r.Method, path+"?nonsense=1", body, `unknown key "nonsense"`)
			refused(t, r.Method, path+"?check=%zz", body, "cannot read the query")
			for key := range r.Query {
				refused(t, r.Method, path+"?"+key+"=1&"+key+"=1", body, key+": is there more than once")
				if len(key) > 3 {
					refused(t, r.Method, path+"?"+key[1:]+"=1", body, `did you mean "`+key+`"?`)
				}
				if r.Query[key] == server.Flag {
					for _, value := range []string{"", "yes", "TRUE", "2", "0 "} {
						refused(t, r.Method, path+"?"+key+"="+strings.ReplaceAll(value, " ", "+"), body, "is not a boolean")
					}
				}
			}
			switch r.Body.(type) {
			case nil:
				refused(t, r.Method, path, "{}", "has no body")
				return
			case server.Document:
				return // Package spec is strict, see its tests.
			}
			refused(t, r.Method, path, `{"nonsense":1}`, `unknown key "nonsense"`)
			refused(t, r.Method, path, `{} {}`, "after the end")
			refused(t, r.Method, path, `{`, "not complete")
			refused(t, r.Method, path, strings.Repeat("[", 100_000), "levels")
			for _, f := range reflect.VisibleFields(reflect.TypeOf(r.Body)) {
				key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				refused(t, r.Method, path, `{"`+key+`":null,"`+key+`":null}`, key+": is there more than once")
				refused(t, r.Method, path, `{"`+strings.ToUpper(key)+`":null}`, "unknown key")
			}
		})
	}
	refused(t, http.MethodPost, "/v1/leases", `{"command":["true"],"detach":{"pth":"/bin/true"}}`, `did you mean "path"?`)
}

// check=0 does not check, and check=false neither: the change is carried out.
func TestAFalseFlagIsNotSet(t *testing.T) {
	d := newVirtualWithUsers(t)
	for _, value := range []string{"0", "false", "1", "true"} {
		var out api.ApplyResult
		if e := d.do(http.MethodPost, "/v1/unmanage?check="+value, "", &out); e != nil {
			t.Fatal(e)
		}
		if want := value == "1" || value == "true"; out.Checked != want {
			t.Errorf("check=%s: checked is %v", value, out.Checked)
		}
	}
}

// Another method is answered with those that the path has.
func TestOtherMethodsAreNotAllowed(t *testing.T) {
	d := newVirtualWithUsers(t)
	h, allowed := d.server.Handler(), map[string][]string{}
	for _, r := range d.routes() {
		allowed[r.Pattern] = append(allowed[r.Pattern], r.Method)
		if r.Method == http.MethodGet {
			allowed[r.Pattern] = append(allowed[r.Pattern], http.MethodHead)
		}
	}
	allowed["/v1/leases/attach"] = append(allowed["/v1/leases/attach"], http.MethodDelete) // a lease may have this id
	for pattern, methods := range allowed {
		path := strings.NewReplacer("{id}", "x", "{name}", "x").Replace(pattern)
		for _, m := range []string{http.MethodGet, http.MethodPut, http.MethodPost, http.MethodDelete, http.MethodPatch, http.MethodOptions} {
			if slices.Contains(methods, m) {
				continue
			}
			w := servertest.Request(h, servertest.Peers()["root"], m, path, nil)
			allow := strings.Split(w.Header().Get("Allow"), ", ")
			slices.Sort(allow)
			slices.Sort(methods)
			if w.Code != http.StatusMethodNotAllowed || !slices.Equal(allow, methods) || servertest.ErrorOf(t, w).Kind != api.KindInvalid {
				t.Errorf("%s %s is answered with %d, Allow %q, want 405 and %q", m, path, w.Code, allow, methods)
			}
		}
	}
}
