package plugin

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/kubelet/pods"
	"github.com/gpushare/gpushare/kubelet/publish"
)

// While the API server takes nothing of what is to be said of the pods of one claim, a pod of another claim joins its lease: until then
// nothing of it is counted. All pods of a claim join with one reading of it.
func TestReportsKeepNoPodFromItsLease(t *testing.T) {
	t.Parallel()
	s := &podServer{pods: map[string]*corev1.Pod{}, watcher: make(chan metav1.WatchEvent, 500)}
	held := make(chan struct{})
	var writes atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			writes.Add(1)
			<-held
		}
		s.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL}) // As the driver it makes five requests a second.
	if err != nil {
		t.Fatal(err)
	}
	j := &joins{cgroups: map[types.UID]string{}, wrote: make(chan struct{}, 1)}
	const many = 60
	var reads atomic.Int32
	var reserved []resourceapi.ResourceClaimConsumerReference
	for i := range many {
		reserved = append(reserved, resourceapi.ResourceClaimConsumerReference{Resource: "pods", UID: types.UID(fmt.Sprint("uid-late", i))})
	}
	log := slog.New(slog.DiscardHandler)
	p := &Publisher{Log: log, Pool: "node1"}
	f := &Follower{
		Publisher: p,
		Leases:    j,
		Cgroups:   j,
		Pods:      pods.New(client, "node1"),
		Reporter:  &pods.Reporter{API: client, Node: "node1"},
		Log:       log,
		Claim: func(_ context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
			reads.Add(1)
			c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name)}}
			c.Status.ReservedFor = reserved
			return c, nil
		},
	}
	ctx, stop := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	loops.Go(func() { f.Pods.Run(ctx) })
	defer loops.Wait()
	defer close(held)
	defer stop()
	began := time.Now().Add(-time.Hour)
	var cgroups []string
	for i := range many {
		cgroups = append(cgroups, fmt.Sprint("/noisy", i))
		j.cgroups[types.UID(fmt.Sprint("uid-noisy", i))] = cgroups[i]
		j.cgroups[types.UID(fmt.Sprint("uid-late", i))] = fmt.Sprint("/late", i)
		s.add(fmt.Sprint("noisy", i), "noisy", began)
	}
	await(t, "the pods are read", func() bool { return len(f.Pods.Of("team", "noisy")) == many })
	ended := time.Now()
	p.store(&publish.Node{Status: &api.Status{Leases: []api.Lease{
		{
			ID: "l-1", Command: []string{"team/noisy"}, Reason: "x used 20 of 12 GiB",
			Engine: &api.LeaseEngine{Key: "kubernetes:noisy:0", Kept: true, Cgroups: cgroups, EndedAt: &ended},
		},
		{ID: "l-2", Command: []string{"team/other"}, Engine: &api.LeaseEngine{Key: "kubernetes:other:0", Kept: true}},
	}}})
	loops.Go(func() { f.Run(ctx) })
	await(t, "a report is written", func() bool { return writes.Load() > 0 })
	for i := range many {
		s.add(fmt.Sprint("late", i), "other", time.Now())
	}
	// The write is not answered, so nothing of the reports ends before this does.
	until := time.Now().Add(followTimeout / 2)
	for i := range many {
		want := fmt.Sprint("kubernetes:other:0 /late", i)
		await(t, want+" joins", func() bool { return slices.Contains(j.list(), want) })
	}
	if time.Now().After(until) {
		t.Errorf("the pods joined when the report was given up")
	}
	if n := reads.Load(); n > many/2 {
		t.Errorf("for %d pods their claim was read %d times", many, n)
	}
}

// A claim with many pods that start at once lets one pod of another claim go first after a few of its own.
func TestManyPodsOfAClaimKeepNoOtherWaiting(t *testing.T) {
	t.Parallel()
	s := &podServer{pods: map[string]*corev1.Pod{}, watcher: make(chan metav1.WatchEvent, 500)}
	server := httptest.NewServer(s)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, QPS: 1000, Burst: 1000})
	if err != nil {
		t.Fatal(err)
	}
	const many = 3 * mostJoins
	j := &joins{cgroups: map[types.UID]string{"uid-other": "/other"}, wrote: make(chan struct{}, 1)}
	reserved := []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", UID: "uid-other"}}
	f := &Follower{
		Leases: j, Cgroups: j, Pods: pods.New(client, "node1"), Log: slog.New(slog.DiscardHandler),
		Claim: func(_ context.Context, _, name string) (*resourceapi.ResourceClaim, error) {
			c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{UID: types.UID(name)}}
			c.Status.ReservedFor = reserved
			return c, nil
		},
	}
	ctx, stop := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	loops.Go(func() { f.Pods.Run(ctx) })
	defer loops.Wait()
	defer stop()
	for i := range many {
		uid := types.UID(fmt.Sprint("uid-many", i))
		j.cgroups[uid] = fmt.Sprint("/many", i)
		reserved = append(reserved, resourceapi.ResourceClaimConsumerReference{Resource: "pods", UID: uid})
		s.add(fmt.Sprint("many", i), "many", time.Now())
	}
	s.add("other", "other", time.Now())
	await(t, "the pods are read", func() bool { return len(f.Pods.Of("team", "many"))+len(f.Pods.Of("team", "other")) == many+1 })
	leases := []api.Lease{
		{Command: []string{"team/many"}, Engine: &api.LeaseEngine{Key: "kubernetes:many:0", Kept: true}},
		{Command: []string{"team/other"}, Engine: &api.LeaseEngine{Key: "kubernetes:other:0", Kept: true}},
	}
	tries, now := attempts{}, time.Now()
	for pass := range 3 {
		f.joins(ctx, now, leases, tries)
		if n, want := len(j.list()), (pass+1)*mostJoins+1; n != want {
			t.Errorf("after pass %d %d pods have joined, not %d", pass, n, want)
		}
		if !slices.Contains(j.list(), "kubernetes:other:0 /other") {
			t.Errorf("after pass %d the pod of the other claim waits", pass)
		}
	}
}
