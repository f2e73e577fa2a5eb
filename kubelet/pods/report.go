package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// The reasons of the events of pods. Reason is why a pod was ended, and of its condition too.
const (
	Reason          = "GPUMemoryExceeded"
	ReasonEnded     = "GPULeaseEnded"     // the lease of its claim has ended before it
	ReasonNotJoined = "GPULeaseNotJoined" // it is in no lease, although it has the devices of its claim
)

// Reporter says of pods what gpushared does with them: in their status that they were ended for their GPU memory, and in events. One
// goroutine uses it.
type Reporter struct {
	API  kubernetes.Interface
	Node string

	written map[types.UID]string // what was written last: the watch shows it later
}

// mostWritten bounds what is kept of pods. What is forgotten is read from the pods.
const mostWritten = 1024

// Report gives a pod its condition and one event. A pod that has this condition is not written again, and an event that is there is not
// made twice: it may be called at any time, and after a restart. An event that is Refused does not keep the condition away.
func (r *Reporter) Report(ctx context.Context, p *Pod, message string, at time.Time) error {
	if p.Condition == message || r.written[p.UID] == message {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": p.UID}, // A pod of the same name that came later is another one.
		"status": map[string]any{"conditions": []corev1.PodCondition{{
			Type: ConditionType, Status: corev1.ConditionTrue, Reason: Reason, Message: message, LastTransitionTime: metav1.NewTime(at),
		}}},
	})
	if err != nil {
		return fmt.Errorf("cannot encode the condition of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	missed := r.Event(ctx, p, Reason, message, at)
	if missed != nil && !Refused(missed) {
		return missed // It is called again: with the condition it would make no event.
	}
	_, err = r.API.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // It was deleted.
	}
	if err != nil {
		return fmt.Errorf("cannot write the condition of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	if r.written == nil || len(r.written) >= mostWritten {
		r.written = map[types.UID]string{}
	}
	r.written[p.UID] = message
	return missed
}

// Refused reports whether the API server refuses a request as it is, by a role, an admission policy or because it is invalid: it does so
// again until an administrator changes that.
func Refused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) }

// Event makes a warning of a pod, whose name is that of what it says: made again it is the same.
func (r *Reporter) Event(ctx context.Context, p *Pod, reason, message string, at time.Time) error {
	const most = 200 // of the 253 letters of a name
	h := fnv.New64a()
	fmt.Fprint(h, p.UID, message, at.UnixMilli())
	e := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: p.Namespace, Name: fmt.Sprintf("%s.%x", p.Name[:min(len(p.Name), most)], h.Sum64())},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
		Reason:         reason,
		Message:        message,
		Source:         corev1.EventSource{Component: "gpushare-kubelet", Host: r.Node},
		FirstTimestamp: metav1.NewTime(at),
		LastTimestamp:  metav1.NewTime(at),
		Count:          1,
		Type:           corev1.EventTypeWarning,
	}
	_, err := r.API.CoreV1().Events(p.Namespace).Create(ctx, e, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) &&
		!apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return fmt.Errorf("cannot make an event of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}
