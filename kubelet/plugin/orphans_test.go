package plugin

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/kubelet/claims"
	"github.com/gpushare/gpushare/kubelet/publish"
)

// ledger is a gpushared with leases, which end when they are released.
type ledger struct{ leases []api.Lease }

func (*ledger) Read(context.Context) (*publish.Node, error) { return nil, nil }

func (x *ledger) Leases(context.Context) ([]api.Lease, error) { return slices.Clone(x.leases), nil }

// engine is what an engine asks of a ledger.
type engine struct {
	claims.Leases
	ledger *ledger
}

func (x engine) ReleaseEngine(_ context.Context, key string) (string, error) {
	x.ledger.leases = slices.DeleteFunc(x.ledger.leases, func(l api.Lease) bool { return l.Engine.Key == key })
	return "", nil
}

// A lease without a process and without a cgroup, whose claim is not there or is another one of that name, is released when it was so twice.
// Every other one is kept, also when the API server does not say.
func TestLeaseWithoutAClaim(t *testing.T) {
	t.Parallel()
	resource := schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}
	answers := map[string]error{
		"gone":    apierrors.NewNotFound(resource, "gone"),
		"again":   apierrors.NewNotFound(resource, "again"),
		"pod":     apierrors.NewNotFound(resource, "pod"),
		"busy":    apierrors.NewNotFound(resource, "busy"),
		"away":    apierrors.NewInternalError(context.DeadlineExceeded),
		"version": apierrors.NewGenericServerResponse(http.StatusNotFound, "get", resource, "version", "404 page not found", 0, true),
	}
	uids := map[string]types.UID{"other": "a-new-one"}
	empty := time.Now()
	x := &ledger{}
	dir := t.TempDir()
	files := claims.Files{Dir: dir}
	for _, name := range []string{"there", "gone", "again", "other", "pod", "busy", "away", "version"} {
		l := api.Lease{ID: "l-" + name, Command: []string{"team/" + name}, Engine: &api.LeaseEngine{
			Key: "kubernetes:" + name + ":0", Kept: true, Cgroups: []string{"/" + name}, EmptySince: &empty,
		}}
		if name == "busy" {
			l.Engine.EmptySince = nil
		}
		x.leases = append(x.leases, l)
		document := json.RawMessage(`{"cdiVersion":"0.6.0","kind":"x/y","devices":[{"name":"d","containerEdits":{}}]}`)
		if err := files.Write(types.UID(name), document); err != nil {
			t.Fatal(err)
		}
	}
	f := &Follower{
		Cgroups: &joins{cgroups: map[types.UID]string{"uid-pod": "/pod"}},
		Log:     slog.New(slog.DiscardHandler),
		Claims:  &claims.Preparer{Leases: engine{ledger: x}, Node: x, Files: files, Log: slog.New(slog.DiscardHandler)},
		Claim: func(_ context.Context, _, name string) (*resourceapi.ResourceClaim, error) {
			if err := answers[name]; err != nil {
				return nil, err
			}
			uid := types.UID(name)
			if other, ok := uids[name]; ok {
				uid = other
			}
			return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{UID: uid}}, nil
		},
	}
	suspects := f.orphans(t.Context(), nil)
	if len(x.leases) != 8 {
		t.Errorf("after the first look there are %d leases", len(x.leases))
	}
	delete(answers, "again") // The API server had another answer.
	suspects = f.orphans(t.Context(), suspects)
	var left []string
	for i := range x.leases {
		left = append(left, x.leases[i].ID)
	}
	if !slices.Equal(left, []string{"l-there", "l-again", "l-pod", "l-busy", "l-away", "l-version"}) {
		t.Errorf("left are %v", left)
	}
	for _, name := range []string{"gone", "other"} {
		if _, err := os.Stat(filepath.Join(dir, filepath.Base(files.Path(types.UID(name))))); err == nil {
			t.Errorf("the file of %s is there", name)
		}
	}
	if n, err := files.Claims(); err != nil || len(n) != 6 {
		t.Errorf("the files are of %v: %v", n, err)
	}
	if len(suspects) != 0 {
		t.Errorf("suspect are %v", suspects)
	}
}
