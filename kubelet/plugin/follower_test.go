package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/kubelet/claims"
	"github.com/gpushare/gpushare/kubelet/pods"
	"github.com/gpushare/gpushare/kubelet/publish"
)

// podServer has what the follower reads and writes of an API server: the pods of a node, their conditions and events.
type podServer struct {
	mu      sync.Mutex
	pods    map[string]*corev1.Pod // by name
	events  []corev1.Event
	patches int
	down    bool // writes are refused
	watcher chan metav1.WatchEvent
	only    []string // the selectors of the reads
}

func (s *podServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.Method == http.MethodGet:
		s.read(w, r)
	case r.Method == http.MethodPost, r.Method == http.MethodPatch:
		s.write(w, r)
	default:
		http.NotFound(w, r)
	}
}

func (s *podServer) read(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.only = append(s.only, r.URL.Query().Get("fieldSelector"))
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
	list.ResourceVersion = "1"
	for _, p := range s.pods {
		list.Items = append(list.Items, *p)
	}
	events := s.watcher
	s.mu.Unlock()
	out := json.NewEncoder(w)
	if r.URL.Query().Get("watch") == "" {
		_ = out.Encode(&list)
		return
	}
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		for i := range list.Items {
			_ = out.Encode(podEvent("ADDED", &list.Items[i]))
		}
		end := &corev1.Pod{}
		end.ResourceVersion, end.Annotations = "1", map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		_ = out.Encode(podEvent("BOOKMARK", end))
	}
	_ = http.NewResponseController(w).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case e := <-events:
			_ = out.Encode(e)
			_ = http.NewResponseController(w).Flush()
		}
	}
}

func podEvent(kind string, p *corev1.Pod) metav1.WatchEvent {
	p = p.DeepCopy()
	p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	b, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	e := metav1.WatchEvent{Type: kind}
	e.Object.Raw = b
	return e
}

func (s *podServer) write(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || s.down {
		http.Error(w, "it does not answer", http.StatusInternalServerError)
		return
	}
	if r.Method == http.MethodPost {
		e := &corev1.Event{}
		if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(b, nil, e); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if slices.ContainsFunc(s.events, func(o corev1.Event) bool { return o.Name == e.Name }) {
			w.WriteHeader(http.StatusConflict)
			_ = json.NewEncoder(w).Encode(&metav1.Status{
				TypeMeta: metav1.TypeMeta{
					APIVersion: "v1",
					Kind:       "Status",
				},
				Status: "Failure",
				Reason: metav1.StatusReasonAlreadyExists,
				Code:   409,
			})
			return
		}
		s.events = append(s.events, *e)
		_ = json.NewEncoder(w).Encode(e)
		return
	}
	patch := &corev1.Pod{}
	if err := json.Unmarshal(b, patch); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.patches++
	for _, p := range s.pods {
		if p.UID == patch.UID {
			p.Status.Conditions = patch.Status.Conditions
			select {
			case s.watcher <- podEvent("MODIFIED", p):
			default:
			}
			_ = json.NewEncoder(w).Encode(p)
			return
		}
	}
	http.NotFound(w, r)
}

func (s *podServer) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// add is a new pod that uses a claim of the template of its spec.
func (s *podServer) add(name, claim string, created time.Time) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(created), ResourceVersion: "2",
	}}
	p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &claim}}
	event := podEvent("ADDED", p)
	s.set(func() { s.pods[name] = p })
	s.watcher <- event
}

// joins records which cgroups leases have been given, and cgroups which pods have theirs.
type joins struct {
	claims.Leases
	mu      sync.Mutex
	joined  []string
	cgroups map[types.UID]string
	wrote   chan struct{}
}

func (j *joins) AttachEngine(_ context.Context, r api.EngineRequest) (*api.LeaseGrant, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !r.Keep {
		return nil, errors.New("the lease would end with its processes")
	}
	j.joined = append(j.joined, r.Key+" "+r.Cgroup)
	select {
	case j.wrote <- struct{}{}:
	default:
	}
	return &api.LeaseGrant{}, nil
}

func (j *joins) Cgroup(pod types.UID) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.cgroups[pod]
}

func (j *joins) Exists(path string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, cgroup := range j.cgroups {
		if cgroup == path {
			return true
		}
	}
	return false
}

func (j *joins) list() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.joined)
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
		pause := time.NewTimer(5 * time.Millisecond)
		<-pause.C
	}
}

// A further pod of a claim joins its lease when its cgroup is there. A pod of a lease whose processes were ended has a condition and one
// event that say why, also when the API server did not answer at first, and after the lease was released; a pod that came later has none.
func TestFollower(t *testing.T) {
	t.Parallel()
	s := &podServer{pods: map[string]*corev1.Pod{}, watcher: make(chan metav1.WatchEvent, 100)}
	server := httptest.NewServer(s)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, QPS: 1000, Burst: 1000})
	if err != nil {
		t.Fatal(err)
	}
	j := &joins{cgroups: map[types.UID]string{}, wrote: make(chan struct{}, 1)}
	reserved := []resourceapi.ResourceClaimConsumerReference{}
	for _, pod := range []string{"first", "second", "third"} {
		reserved = append(reserved, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod, UID: types.UID("uid-" + pod)})
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
			c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "claim-uid"}}
			c.Status.ReservedFor = reserved
			return c, nil
		},
	}
	ctx, stop := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	loops.Go(func() { f.Pods.Run(ctx) })
	loops.Go(func() { f.Run(ctx) })
	defer loops.Wait()
	defer stop()

	const key = "kubernetes:claim-uid:0"
	began := time.Now().Add(-time.Hour)
	lease := api.Lease{
		ID:      "l-1",
		Command: []string{"team/gpu"},
		Engine:  &api.LeaseEngine{Key: key, Kept: true, Cgroups: []string{"/first"}},
	}
	show := func(l api.Lease) { p.store(&publish.Node{Status: &api.Status{Leases: []api.Lease{l}}}) }
	show(lease)
	j.mu.Lock()
	j.cgroups["uid-first"] = "/first"
	j.mu.Unlock()
	s.add("first", "gpu", began)
	s.add("second", "gpu", began)
	s.add("foreign", "gpu", began) // It uses a claim of that name, and the claim is not reserved for it.
	s.add("other", "another", began)
	j.mu.Lock()
	for _, pod := range []types.UID{"uid-foreign", "uid-other"} {
		j.cgroups[pod] = "/" + string(pod)
	}
	j.mu.Unlock()
	await(t, "the pods are read", func() bool { return len(f.Pods.Of("team", "gpu")) == 3 })
	if l := j.list(); len(l) > 0 {
		t.Errorf("before its cgroup is there a pod has joined: %v", l)
	}
	j.mu.Lock()
	j.cgroups["uid-second"] = "/second"
	j.mu.Unlock()
	await(t, "the second pod joins", func() bool { return slices.Equal(j.list(), []string{key + " /second"}) })

	ended := time.Now()
	lease.Engine = &api.LeaseEngine{Key: key, Kept: true, Cgroups: []string{"/first", "/second"}, EndedAt: &ended}
	lease.Reason = "kubernetes/serve used 20 of 12 GiB GPU memory"
	s.set(func() { s.down = true })
	show(lease)
	s.add("third", "gpu", ended.Add(time.Hour))
	await(t, "the third pod is read", func() bool { return len(f.Pods.Of("team", "gpu")) == 4 })
	s.set(func() { s.down = false })
	condition := func(pod string) (c corev1.PodCondition) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if list := s.pods[pod].Status.Conditions; len(list) > 0 {
			c = list[0]
		}
		return c
	}
	want := "gpushare ended its processes that used the GPU: " + lease.Reason
	for _, pod := range []string{"first", "second"} {
		await(t, pod+" says why it was ended", func() bool { return condition(pod).Message == want })
		if c := condition(pod); c.Type != pods.ConditionType || c.Status != corev1.ConditionTrue || c.Reason != pods.Reason {
			t.Errorf("the condition of %s is %+v", pod, c)
		}
	}
	if c := condition("third"); c.Message != "" {
		t.Errorf("a pod that came later says %+v", c)
	}
	// The lease is released at once, as of a pod that does not start again.
	later := ended.Add(time.Minute)
	released := lease
	released.Engine = &api.LeaseEngine{Key: key, Kept: true, EndedAt: &later}
	released.Reason = "kubernetes/serve used 21 of 12 GiB GPU memory"
	f.Remember(&released)
	p.store(&publish.Node{Status: &api.Status{}})
	await(t, "the pods of a released lease say why", func() bool {
		return condition("second").Message == "gpushare ended its processes that used the GPU: "+released.Reason
	})
	show(released) // The same again, as after a restart, is not written again.
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := map[types.UID]int{}
	for _, e := range s.events {
		counts[e.InvolvedObject.UID]++
		if e.Type != corev1.EventTypeWarning || e.Reason != pods.Reason {
			t.Errorf("an event is %+v", e)
		}
	}
	if counts["uid-second"] != 2 || counts["uid-third"] > 1 || s.patches > 8 {
		t.Errorf("the events are %v, with %d patches", counts, s.patches)
	}
	for _, o := range s.only {
		if o != "spec.nodeName=node1" {
			t.Errorf("pods are read with selector %q: a node may read its own alone", o)
		}
	}
}
