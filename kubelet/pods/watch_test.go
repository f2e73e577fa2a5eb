package pods_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpushare/gpushare/kubelet/pods"
)

// The claims of a pod that the watch has not seen are read, with what a node may ask: its own pods. A pod of that name with another uid is
// another one, and one that is over uses nothing.
func TestClaimsOfAPodThatIsNotSeenYet(t *testing.T) {
	t.Parallel()
	named, generated := "named", "generated"
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "pod", UID: "uid"}}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "a", ResourceClaimName: &named}, {Name: "b"}}
	pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "b", ResourceClaimName: &generated}}
	over := pod
	over.Name, over.Status.Phase = "over", corev1.PodFailed
	down := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if down {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
		for _, p := range []corev1.Pod{pod, over} {
			only := "metadata.name=" + p.Name + ",spec.nodeName=node1"
			if r.URL.Path == "/api/v1/namespaces/team/pods" && r.URL.Query().Get("fieldSelector") == only {
				list.Items = append(list.Items, p)
			}
		}
		_ = json.NewEncoder(w).Encode(&list)
	}))
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, QPS: 1000, Burst: 1000})
	if err != nil {
		t.Fatal(err)
	}
	w := pods.New(client, "node1")
	for _, c := range []struct {
		name string
		uid  types.UID
		want []string
	}{{"pod", "uid", []string{generated, named}}, {"pod", "another", nil}, {"over", "uid", nil}, {"none", "uid", nil}} {
		got, err := w.ClaimsOf(t.Context(), "team", c.name, c.uid)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s with uid %s uses %v: %v", c.name, c.uid, got, err)
		}
	}
	down = true
	if _, err := w.ClaimsOf(t.Context(), "team", "pod", "uid"); err == nil {
		t.Error("what is not known is taken for nothing")
	}
}
