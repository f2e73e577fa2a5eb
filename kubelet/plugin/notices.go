package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/kubelet/claims"
	"github.com/gpushare/gpushare/kubelet/pods"
)

// notice is an event that a pod has yet to have.
type notice struct {
	pod             pods.Pod
	reason, message string
	at              time.Time
}

// notify keeps an event for the reports.
func (f *Follower) notify(n notice) {
	f.mu.Lock()
	f.notices = append(f.notices, n)
	if over := len(f.notices) - mostEnded; over > 0 {
		f.notices = slices.Delete(f.notices, 0, over)
	}
	f.mu.Unlock()
	f.ringReports()
}

// noticeNotJoined says to a pod that gpushared refuses it the lease of its claim. Its container runs all the same.
func (f *Follower) noticeNotJoined(p *pods.Pod, claim string, now time.Time, err error) {
	e, ok := errors.AsType[*api.Error](err)
	if !ok {
		return // The API server does not answer, or not in time: it is in the log.
	}
	f.notify(notice{*p, pods.ReasonNotJoined, fmt.Sprintf(
		"it is not in the lease of its claim %s, so what it uses of the GPU is neither counted nor limited: %s", claim, e.Message,
	), now})
}

// noticeEnded says to the pods of a claim that its lease has ended.
func (f *Follower) noticeEnded(ctx context.Context, e *claims.Ended) {
	namespace, name, ok := strings.Cut(e.Name, "/")
	if !ok {
		return // It is in the log.
	}
	why := ""
	if e.Reason != "" {
		why = ": " + e.Reason
	}
	c, err := f.Claim(ctx, namespace, name)
	for _, p := range f.Pods.Of(namespace, name) {
		if p.Over || p.Created.After(e.At) || err == nil && !claims.ReservedFor(c, e.Claim, p.UID) {
			continue // It is of another claim of that name.
		}
		const next = "A container of it that starts again gets no GPU: delete the pod, and a new one has a new lease"
		f.notify(notice{p, pods.ReasonEnded, fmt.Sprintf("the lease of its claim %s has ended%s. %s", e.Name, why, next), e.At})
	}
}

// sendNotices makes the events that are due, and returns after which time one has to be tried again; 0: none.
func (f *Follower) sendNotices(ctx context.Context, now time.Time, tries attempts) (wait time.Duration) {
	keepUndone(f, &f.notices, func(n notice) bool {
		if now.After(n.at.Add(endedRetention)) {
			return true
		}
		after := tries.of("notice "+string(n.pod.UID)+" "+n.message).due(
			now, func() error { return f.Reporter.Event(ctx, &n.pod, n.reason, n.message, n.at) }, func(err error) {
				f.Log.Warn("a pod has no event", "pod", n.pod.Namespace+"/"+n.pod.Name, "reason", n.reason, "error", err)
			},
		)
		wait = sooner(wait, after)
		return after == 0
	})
	return wait
}
