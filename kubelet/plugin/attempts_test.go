package plugin

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/kubelet/claims"
	"github.com/gpushare/gpushare/kubelet/pods"
)

// refusals let a gpushared refuse to let a pod join.
type refusals struct {
	*joins
	requests int
}

func (r *refusals) AttachEngine(context.Context, api.EngineRequest) (*api.LeaseGrant, error) {
	r.requests++
	return nil, &api.Error{Kind: api.KindUnavailable, Message: "the lease has as many cgroups as it may"}
}

// What is refused for a pod is tried again after a second, then after twice as long each time, and what an administrator has to change
// after an hour. It is in the log once. Nothing is kept of pods that are not there any more, and none is looked for without end.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		code        int
		reason      metav1.StatusReason
		least, most int // conditions that are requested in an hour less a second
	}{
		{name: "forbidden", code: http.StatusForbidden, reason: metav1.StatusReasonForbidden, least: 1, most: 1},
		{name: "away", code: http.StatusInternalServerError, reason: metav1.StatusReasonInternalError, least: 60, most: 70},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := &podServer{pods: map[string]*corev1.Pod{}, watcher: make(chan metav1.WatchEvent, 100)}
			var mu sync.Mutex
			writes := map[string]int{}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet {
					s.ServeHTTP(w, r)
					return
				}
				mu.Lock()
				writes[r.Method]++
				mu.Unlock()
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(c.code)
				fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, c.reason, c.code)
			}))
			t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
			client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, QPS: 1000, Burst: 1000})
			if err != nil {
				t.Fatal(err)
			}
			var text bytes.Buffer
			j := &joins{cgroups: map[types.UID]string{"uid-first": "/first", "uid-second": "/second"}}
			gpushared := &refusals{joins: j}
			f := &Follower{
				Leases:   gpushared,
				Cgroups:  j,
				Pods:     pods.New(client, "node1"),
				Reporter: &pods.Reporter{API: client, Node: "node1"},
				Log:      slog.New(slog.NewTextHandler(&text, nil)),
				Claim: func(context.Context, string, string) (*resourceapi.ResourceClaim, error) {
					c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{UID: "claim-uid"}}
					c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", UID: "uid-second"}}
					return c, nil
				},
			}
			ctx, stop := context.WithCancel(t.Context())
			var loops sync.WaitGroup
			loops.Go(func() { f.Pods.Run(ctx) })
			defer loops.Wait()
			defer stop()
			now := time.Now()
			s.add("first", "gpu", now.Add(-2*time.Hour))
			s.add("second", "gpu", now.Add(-2*time.Hour))
			s.add("deleted", "gpu", now.Add(-2*time.Hour)) // It has no cgroup.
			s.set(func() {
				s.pods["deleted"].DeletionTimestamp = &metav1.Time{Time: now}
				s.watcher <- podEvent("MODIFIED", s.pods["deleted"])
			})
			await(t, "the pods are read", func() bool {
				list := f.Pods.Of("team", "gpu")
				return len(list) == 3 && list[0].Deleted
			})
			ended := now.Add(-time.Hour)
			leases := []api.Lease{{
				ID: "l-1", Command: []string{"team/gpu"}, Reason: "too much",
				Engine: &api.LeaseEngine{
					Key: "kubernetes:claim-uid:0", Kept: true, Cgroups: []string{"/first"}, EndedAt: &ended,
				},
			}}
			tries, written := attempts{}, attempts{}
			pass := func(now time.Time) time.Duration {
				return sooner(f.joins(ctx, now, leases, tries), f.reports(ctx, now, leases, written))
			}
			for elapsed := time.Duration(0); elapsed < time.Hour; elapsed += 5 * time.Second {
				pass(now.Add(elapsed))
			}
			mu.Lock()
			if n := writes[http.MethodPost]; n <= 3*c.least || n > 4*c.most {
				t.Errorf("within an hour %d events of three pods, and of one that does not join, are requested", n)
			}
			mu.Unlock()
			if gpushared.requests < 60 || gpushared.requests > 70 {
				t.Errorf("within an hour gpushared has %d requests", gpushared.requests)
			}
			for what, want := range map[string]int{"does not join": 1, "does not say why": 3} {
				if n := strings.Count(text.String(), what); n != want {
					t.Errorf("%q is in the log %d times, not %d:\n%s", what, n, want, &text)
				}
			}
			if wait := pass(now.Add(time.Hour)); wait < retry {
				t.Errorf("the next pass is after %v", wait)
			}
			// The pods are removed.
			for _, name := range []string{"first", "second", "deleted"} {
				s.set(func() { s.watcher <- podEvent("DELETED", s.pods[name]) })
			}
			await(t, "the pods are removed", func() bool { return len(f.Pods.Of("team", "gpu")) == 0 })
			if pass(now.Add(time.Hour)); len(tries)+len(written) > 0 {
				t.Errorf("of pods that are not there it keeps %v and %v", tries, written)
			}
		})
	}
}

// A pod whose cgroup the lease has no more joins again, also if it had joined before.
func TestJoinAgain(t *testing.T) {
	t.Parallel()
	j := &joins{cgroups: map[types.UID]string{"uid": "/pod"}}
	f := &Follower{
		Leases:  j,
		Cgroups: j,
		Log:     slog.New(slog.DiscardHandler),
		Claim: func(context.Context, string, string) (*resourceapi.ResourceClaim, error) {
			c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{UID: "claim-uid"}}
			c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", UID: "uid"}}
			return c, nil
		},
	}
	lease := api.Lease{Command: []string{"team/gpu"}, Engine: &api.LeaseEngine{Key: "kubernetes:claim-uid:0", Kept: true}}
	tries, now := attempts{}, time.Now()
	p := &pods.Pod{Namespace: "team", Name: "pod", UID: "uid"}
	step := func(after time.Duration, want int, cgroups ...string) {
		t.Helper()
		lease.Engine.Cgroups = cgroups
		f.join(t.Context(), now.Add(after), &lease, p, f.once("team", "gpu"), tries)
		if n := len(j.list()); n != want {
			t.Errorf("after %v it has joined %d times, not %d", after, n, want)
		}
	}
	step(0, 1)
	step(time.Second/2, 1) // The status is not read again yet.
	step(2*time.Second, 1, "/pod")
	step(time.Minute, 2)
}

var _ claims.Leases = (*refusals)(nil)
