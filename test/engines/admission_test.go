//go:build engines

package engines

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// bearer adds a token to each request.
type bearer struct {
	token string
	to    http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.to.RoundTrip(r)
}

// account is the API with a token of the service account of the driver, bound to a pod unless that is nil.
func (l *lab) account(ctx context.Context, t *testing.T, of *pod) *cluster {
	t.Helper()
	spec := map[string]any{"expirationSeconds": 3600}
	if of != nil {
		spec["boundObjectRef"] = map[string]any{"apiVersion": "v1", "kind": "Pod", "name": of.Metadata.Name, "uid": of.Metadata.UID}
	}
	var answer struct{ Status struct{ Token string } }
	err := l.request(ctx, http.MethodPost, "/api/v1/namespaces/gpushare/serviceaccounts/gpushare-kubelet/token", map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec,
	}, &answer)
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{l.address, &http.Client{Transport: bearer{
		answer.Status.Token, &http.Transport{TLSClientConfig: l.authority.anonymous()},
	}}}
}

// sliceOf is a slice with one device. It is of all nodes if it is of none.
func sliceOf(name, node, driver string) map[string]any {
	spec := map[string]any{
		"driver": driver, "pool": map[string]any{"name": name, "generation": 1, "resourceSliceCount": 1},
		"devices": []any{map[string]any{"name": "device"}},
	}
	if node == "" {
		spec["allNodes"] = true
	} else {
		spec["nodeName"] = node
	}
	return map[string]any{
		"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": map[string]any{"name": name}, "spec": spec,
	}
}

// The service account of the DaemonSet writes what is of its node, and nothing else: the driver closes a GPU in its slices and says in the
// status of a pod why it was ended. A token that was taken from it is refused slices and pods of another node, and slices of another
// driver, also those that are there.
func (l *lab) policyOfTheDaemonSet(t *testing.T) {
	l.asDaemonSet(t, func(driver *pod) {
		l.driverWritesItsOwn(t)
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		taken, unbound := l.account(ctx, t, driver), l.account(ctx, t, nil)
		defer l.standing(ctx, t)()
		const foreign, other = "gpushare-kubelet writes only what is of the node on which it runs", "gpushare-kubelet writes no slice of another driver"
		const dry = "?dryRun=All"
		status := func(name string) string { return kinds["Pod"] + "/" + name + "/status" }
		says := map[string]any{"status": map[string]any{"message": "said by a token"}}
		for _, c := range []struct {
			name         string
			by           *cluster
			method, path string
			send         any
			refused      string // empty: it is not
		}{
			{"a slice of its node", taken, http.MethodPost, slicesPath + dry, sliceOf("own", nodeName, "gpushare.dev"), ""},
			{"the status of a pod of its node", taken, http.MethodPatch, status("of-this-node") + dry, says, ""},
			{"a slice of another node", taken, http.MethodPost, slicesPath, sliceOf("foreign", "elsewhere", "gpushare.dev"), foreign},
			{"a slice of all nodes", taken, http.MethodPost, slicesPath, sliceOf("foreign", "", "gpushare.dev"), foreign},
			{"a slice of another driver", taken, http.MethodPost, slicesPath, sliceOf("foreign", nodeName, "gpu.example"), other},
			{"a change of a slice of another node", taken, http.MethodPatch, slicesPath + "/there-elsewhere", generation(2), foreign},
			{"a change of a slice of another driver", taken, http.MethodPatch, slicesPath + "/there-driver", generation(2), other},
			{"the removal of a slice of another node", taken, http.MethodDelete, slicesPath + "/there-elsewhere", nil, foreign},
			{"the removal of a slice of another driver", taken, http.MethodDelete, slicesPath + "/there-driver", nil, other},
			{"the status of a pod of another node", taken, http.MethodPatch, status("of-another-node"), says, foreign},
			{"a slice with a token of no pod", unbound, http.MethodPost, slicesPath, sliceOf("foreign", nodeName, "gpushare.dev"), foreign},
			{"the status of a pod with a token of no pod", unbound, http.MethodPatch, status("of-this-node"), says, foreign},
		} {
			err := c.by.request(ctx, c.method, c.path, c.send, nil)
			refusal := (*refusal)(nil)
			switch {
			case c.refused == "" && err == nil:
				t.Logf("%s: admitted", c.name)
			case c.refused != "" && errors.As(err, &refusal) && refusal.code == http.StatusForbidden && strings.Contains(refusal.text, c.refused):
				t.Logf("%s: %d: %s", c.name, refusal.code, c.refused)
			default:
				t.Errorf("%s: %v, and the refusal is %q", c.name, err, c.refused)
			}
		}
	})
	l.nothingLeft(t)
}

func generation(n int) map[string]any {
	return map[string]any{"spec": map[string]any{"pool": map[string]any{"generation": n}}}
}

// driverWritesItsOwn sees both kinds of what the driver writes pass the policy.
func (l *lab) driverWritesItsOwn(t *testing.T) {
	t.Helper()
	l.node.do(t, time.Minute, "gpushare gpu cordon 1")
	l.published(
		t,
		"the pod of the driver closes a GPU",
		func(all map[string]device) bool { return tainted(all, noSchedule, "gpu-1-parts") },
	)
	l.node.do(t, time.Minute, "gpushare gpu uncordon 1")
	l.published(t, "the pod of the driver opens it", func(all map[string]device) bool { return clean(all, "gpu-1-parts") })
	l.claimant(t, "over-by-daemonset", "part-30g", append(slices.Clone(burn), "40GiB")...)
	p := l.wants(t, "over-by-daemonset", func(p *pod) bool { return p.has("Failed") && p.exceeded() != "" })
	t.Log(p.exceeded())
	l.remove(t, "over-by-daemonset")
}

// standing creates what the token tries to change, as the administrator. The function undoes it.
func (l *lab) standing(ctx context.Context, t *testing.T) (undo func()) {
	t.Helper()
	var paths []string
	for _, s := range []map[string]any{sliceOf("there-elsewhere", "elsewhere", "gpushare.dev"), sliceOf("there-driver", nodeName, "gpu.example")} {
		if err := l.request(ctx, http.MethodPost, slicesPath, s, nil); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, slicesPath+"/"+fmt.Sprint(s["metadata"].(map[string]any)["name"]))
	}
	l.pod(t, "of-this-node", "", "")
	l.wants(t, "of-this-node", running)
	// Its node does not exist: nothing runs, and it may be collected before.
	l.pod(t, "of-another-node", "nodeName: elsewhere", "")
	paths = append(paths, kinds["Pod"]+"/of-another-node?gracePeriodSeconds=0")
	return func() {
		l.remove(t, "of-this-node")
		for _, path := range paths {
			err := l.request(context.Background(), http.MethodDelete, path, nil, nil)
			if r := (*refusal)(nil); err != nil && (!errors.As(err, &r) || r.code != http.StatusNotFound) {
				t.Error(err)
			}
		}
	}
}
