package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/gpushare/gpushare/test/harness"
)

// apiserver has what the driver reads and writes of an API server: its node, claims, and the slices that it publishes.
type apiserver struct {
	*httptest.Server

	mu       sync.Mutex
	version  int
	slices   map[string]*resourceapi.ResourceSlice
	claims   map[string]*resourceapi.ResourceClaim // by NAMESPACE/NAME
	pods     []*corev1.Pod
	podAdded chan struct{} // closed and replaced when there is another pod
	watchers []chan metav1.WatchEvent
	events   []corev1.Event
	writes   int // of slices
	changed  chan struct{}
	older    bool // it has no partitionable devices: it drops their fields
}

const testNode = "node1"

func newAPIServer(t *testing.T) *apiserver {
	t.Helper()
	a := &apiserver{
		slices:  map[string]*resourceapi.ResourceSlice{},
		claims:  map[string]*resourceapi.ResourceClaim{},
		changed: make(chan struct{}),

		podAdded: make(chan struct{}),
	}
	m := http.NewServeMux()
	m.HandleFunc("GET /api/v1/nodes/{name}", func(w http.ResponseWriter, r *http.Request) {
		reply(w, &corev1.Node{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{Name: r.PathValue("name"), UID: "node-uid"},
		})
	})
	m.HandleFunc("GET /api/v1/pods", a.listPods)
	m.HandleFunc("GET /api/v1/namespaces/{namespace}/pods", a.namedPods)
	m.HandleFunc("POST /api/v1/namespaces/{namespace}/events", a.postEvent)
	const base = "/apis/resource.k8s.io/v1/"
	m.HandleFunc("GET "+base+"namespaces/{namespace}/resourceclaims/{name}", a.getClaim)
	m.HandleFunc("GET "+base+"resourceslices", a.list)
	m.HandleFunc("POST "+base+"resourceslices", func(w http.ResponseWriter, r *http.Request) { a.put(w, r, "ADDED") })
	m.HandleFunc("PUT "+base+"resourceslices/{name}", func(w http.ResponseWriter, r *http.Request) { a.put(w, r, "MODIFIED") })
	m.HandleFunc("DELETE "+base+"resourceslices/{name}", a.remove)
	a.Server = httptest.NewServer(m)
	t.Cleanup(func() {
		a.CloseClientConnections()
		a.Close()
	})
	return a
}

// kubeconfig is a file with its address.
func (a *apiserver) kubeconfig(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":%q}}],`+
		`"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{}}]}`, a.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		panic(http.ErrAbortHandler)
	}
}

func missing(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusNotFound)
	_ = json.NewEncoder(w).Encode(&metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: 404,
	})
}

func (a *apiserver) getClaim(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	c := a.claims[r.PathValue("namespace")+"/"+r.PathValue("name")]
	a.mu.Unlock()
	if c == nil {
		missing(w)
		return
	}
	reply(w, c)
}

// addPod is a new pod that uses claims.
func (a *apiserver) addPod(uid types.UID, claims ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: string(uid), UID: uid, ResourceVersion: fmt.Sprint(len(a.pods) + 2)},
	}
	for i := range claims {
		p.Spec.ResourceClaims = append(
			p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: fmt.Sprintf("gpu%d", i), ResourceClaimName: &claims[i]},
		)
	}
	a.pods = append(a.pods, p)
	close(a.podAdded)
	a.podAdded = make(chan struct{})
}

// listPods lists the pods, or sends them as they come.
func (a *apiserver) listPods(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
	list.ResourceVersion = fmt.Sprint(len(a.pods) + 1)
	for _, p := range a.pods {
		list.Items = append(list.Items, *p)
	}
	sent := len(a.pods)
	a.mu.Unlock()
	if r.URL.Query().Get("watch") == "" {
		reply(w, &list)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	out := json.NewEncoder(w)
	send := func(kind string, p *corev1.Pod) {
		b, err := json.Marshal(p)
		if err != nil {
			panic(err)
		}
		e := metav1.WatchEvent{Type: kind}
		e.Object.Raw = b
		_ = out.Encode(e)
	}
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		for i := range list.Items {
			send("ADDED", &list.Items[i])
		}
		end := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
		end.ResourceVersion, end.Annotations = list.ResourceVersion, map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		send("BOOKMARK", end)
	} else {
		_, _ = fmt.Sscan(r.URL.Query().Get("resourceVersion"), &sent)
		sent = max(0, sent-1)
	}
	for {
		_ = http.NewResponseController(w).Flush()
		a.mu.Lock()
		more, added := a.pods[sent:], a.podAdded
		a.mu.Unlock()
		for _, p := range more {
			send("ADDED", p)
			sent++
		}
		if len(more) > 0 {
			continue
		}
		select {
		case <-r.Context().Done():
			return
		case <-added:
		}
	}
}

// namedPods lists the pods of a name.
func (a *apiserver) namedPods(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
	for _, p := range a.pods {
		if r.URL.Query().Get("fieldSelector") == "metadata.name="+p.Name+",spec.nodeName="+testNode {
			list.Items = append(list.Items, *p)
		}
	}
	reply(w, &list)
}

// postEvent keeps an event.
func (a *apiserver) postEvent(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	e := &corev1.Event{}
	if err == nil {
		_, _, err = scheme.Codecs.UniversalDeserializer().Decode(b, nil, e)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	a.events = append(a.events, *e)
	a.mu.Unlock()
	e.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}
	reply(w, e)
}

// awaitEvent waits until a pod has an event of that reason, with that text.
func (a *apiserver) awaitEvent(t *testing.T, pod, reason, text string) {
	t.Helper()
	err := harness.Await(soon(t), 20*time.Millisecond, "pod "+pod+" has no event "+reason, func() (bool, error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		for i := range a.events {
			if e := &a.events[i]; e.InvolvedObject.Name == pod && e.Reason == reason && strings.Contains(e.Message, text) {
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		t.Errorf("%v: %v", err, a.events)
	}
}

// add makes a claim known.
func (a *apiserver) add(c *resourceapi.ResourceClaim) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c.TypeMeta = metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"}
	a.claims[c.Namespace+"/"+c.Name] = c
}

func (a *apiserver) list(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	list := resourceapi.ResourceSliceList{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSliceList"}}
	list.ResourceVersion = fmt.Sprint(a.version)
	for _, s := range a.slices {
		list.Items = append(list.Items, *s)
	}
	if r.URL.Query().Get("watch") == "" {
		a.mu.Unlock()
		reply(w, &list)
		return
	}
	events := make(chan metav1.WatchEvent, 1000)
	a.watchers = append(a.watchers, events)
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	out := json.NewEncoder(w)
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		for i := range list.Items {
			_ = out.Encode(event("ADDED", &list.Items[i]))
		}
		end := &resourceapi.ResourceSlice{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSlice"}}
		end.ResourceVersion, end.Annotations = list.ResourceVersion, map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		_ = out.Encode(event("BOOKMARK", end))
	}
	_ = http.NewResponseController(w).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case e := <-events:
			if out.Encode(e) != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
		}
	}
}

func event(kind string, s *resourceapi.ResourceSlice) metav1.WatchEvent {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	e := metav1.WatchEvent{Type: kind}
	e.Object.Raw = b
	return e
}

func (a *apiserver) put(w http.ResponseWriter, r *http.Request, kind string) {
	b, err := io.ReadAll(r.Body)
	s := &resourceapi.ResourceSlice{}
	if err == nil { // It is JSON, or the form of protocol buffers.
		_, _, err = scheme.Codecs.UniversalDeserializer().Decode(b, nil, s)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	if a.older {
		s.Spec.SharedCounters = nil
		for i := range s.Spec.Devices {
			s.Spec.Devices[i].ConsumesCounters = nil
		}
	}
	a.version++
	s.TypeMeta = metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSlice"}
	if s.Name == "" {
		s.Name = fmt.Sprintf("%s%d", s.GenerateName, a.version)
	}
	if s.UID == "" {
		s.UID = types.UID(fmt.Sprintf("slice-%d", a.version))
	}
	s.ResourceVersion = fmt.Sprint(a.version)
	a.slices[s.Name] = s
	a.wroteLocked(event(kind, s))
	a.mu.Unlock()
	reply(w, s)
}

func (a *apiserver) remove(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	s := a.slices[r.PathValue("name")]
	if s != nil {
		a.version++
		delete(a.slices, s.Name)
		a.wroteLocked(event("DELETED", s))
	}
	a.mu.Unlock()
	if s == nil {
		missing(w)
		return
	}
	reply(w, s)
}

func (a *apiserver) wroteLocked(e metav1.WatchEvent) {
	a.writes++
	for _, w := range a.watchers {
		select {
		case w <- e:
		default: // Its reader has gone.
		}
	}
	close(a.changed)
	a.changed = make(chan struct{})
}

// devices are the devices that are published, by name, and a channel that is closed at the next write.
func (a *apiserver) devices() (map[string]resourceapi.Device, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := map[string]resourceapi.Device{}
	for _, s := range a.slices {
		for _, d := range s.Spec.Devices {
			out[d.Name] = d
		}
	}
	return out, a.changed
}

// await waits until what is published is as it should be.
func (a *apiserver) await(t *testing.T, what string, ok func(map[string]resourceapi.Device) bool) map[string]resourceapi.Device {
	t.Helper()
	ctx := soon(t)
	for {
		d, changed := a.devices()
		if ok(d) {
			return d
		}
		select {
		case <-changed:
		case <-ctx.Done():
			var names []string
			for name := range d {
				names = append(names, name)
			}
			t.Fatalf("%s: published are %s", what, strings.Join(names, ", "))
		}
	}
}
