package pods

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Pod is a pod of the node that uses claims.
type Pod struct {
	Namespace, Name string
	UID             types.UID
	Claims          []string // names of claims in its namespace, sorted
	Created         time.Time
	Over            bool // it has succeeded or failed: no container of it starts again
	Deleted         bool // its deletion was requested; its containers may still run
	Condition       string
}

// Watch follows the pods of the node. Its methods may be used by several goroutines.
type Watch struct {
	api      kubernetes.Interface
	node     string
	store    cache.Store
	informer cache.Controller
	changed  chan struct{}
}

// ConditionType is the condition of a pod that was ended for its GPU memory.
const ConditionType corev1.PodConditionType = "gpushare.dev/GPUMemoryExceeded"

// New watches the pods of a node when Run is called. The credential of the kubelet may do that, for its node alone.
func New(api kubernetes.Interface, node string) *Watch {
	w := &Watch{api: api, node: node, changed: make(chan struct{}, 1)}
	only := fields.OneTermEqualSelector("spec.nodeName", node).String()
	ring := func() {
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
	w.store, w.informer = cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = only
				return api.CoreV1().Pods("").List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector = only
				return api.CoreV1().Pods("").Watch(ctx, o)
			},
		},
		ObjectType: &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { ring() },
			UpdateFunc: func(any, any) { ring() },
			DeleteFunc: func(any) { ring() },
		},
		Transform: small,
	})
	return w
}

// Run watches until ctx ends.
func (w *Watch) Run(ctx context.Context) { w.informer.RunWithContext(ctx) }

// Changed has a value when a pod has changed.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// Of are the pods that use a claim, the oldest first.
func (w *Watch) Of(namespace, claim string) []Pod {
	var out []Pod
	for _, o := range w.store.List() {
		if p, ok := o.(*corev1.Pod); ok && p.Namespace == namespace {
			if x := podOf(p); slices.Contains(x.Claims, claim) {
				out = append(out, x)
			}
		}
	}
	slices.SortFunc(out, func(a, b Pod) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.UID, b.UID)) })
	return out
}

// ClaimsOf are the names of the claims that a pod uses, in its namespace; none of a pod that is over or not there. A pod that was not seen
// yet is read: the kubelet may see it first.
func (w *Watch) ClaimsOf(ctx context.Context, namespace, name string, uid types.UID) ([]string, error) {
	o, _, err := w.store.GetByKey(namespace + "/" + name)
	p, ok := o.(*corev1.Pod)
	if err == nil && ok && p.UID == uid {
		return claimsOf(p), nil
	}
	// The role of the driver lists pods, and that of a node those of the node.
	only := fields.AndSelectors(fields.OneTermEqualSelector("metadata.name", name), fields.OneTermEqualSelector("spec.nodeName", w.node))
	list, err := w.api.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: only.String()})
	if err != nil {
		return nil, fmt.Errorf("cannot read pod %s/%s: %w", namespace, name, err)
	}
	for i := range list.Items {
		if list.Items[i].UID == uid {
			return claimsOf(&list.Items[i]), nil
		}
	}
	return nil, nil
}

// claimsOf are the claims of a pod; none if it is over.
func claimsOf(p *corev1.Pod) []string {
	if x := podOf(p); !x.Over {
		return x.Claims
	}
	return nil
}

func podOf(p *corev1.Pod) Pod {
	x := Pod{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, Created: p.CreationTimestamp.Time,
		Over:    p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
		Deleted: p.DeletionTimestamp != nil,
	}
	for i := range p.Spec.ResourceClaims {
		if name := p.Spec.ResourceClaims[i].ResourceClaimName; name != nil {
			x.Claims = append(x.Claims, *name)
		}
	}
	for i := range p.Status.ResourceClaimStatuses { // Of those that are made of a template.
		if name := p.Status.ResourceClaimStatuses[i].ResourceClaimName; name != nil {
			x.Claims = append(x.Claims, *name)
		}
	}
	slices.Sort(x.Claims)
	x.Claims = slices.Compact(x.Claims)
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == ConditionType {
			x.Condition = c.Message
		}
	}
	return x
}

// small keeps what is used here of a pod: a node has hundreds, and each may be long.
func small(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	s := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, CreationTimestamp: p.CreationTimestamp,
		DeletionTimestamp: p.DeletionTimestamp,
	}}
	s.Spec.ResourceClaims = p.Spec.ResourceClaims
	s.Status.Phase, s.Status.ResourceClaimStatuses = p.Status.Phase, p.Status.ResourceClaimStatuses
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == ConditionType {
			s.Status.Conditions = append(s.Status.Conditions, p.Status.Conditions[i])
		}
	}
	return s, nil
}
