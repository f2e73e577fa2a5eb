package publish_test

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/board"
	"github.com/gpushare/gpushare/kubelet/publish"
)

// A key is of a claim if it is as Prepare makes it. Another engine of that name has leases that are of no claim: what they have is not
// offered, because a claim of it would be refused.
func TestKeysOfClaims(t *testing.T) {
	t.Parallel()
	for key, claim := range map[string]string{
		"kubernetes:uid:0":     "uid",
		"kubernetes:uid:12":    "uid",
		"kubernetes:uid":       "",
		"kubernetes:uid:":      "",
		"kubernetes::0":        "",
		"kubernetes:uid:0:1":   "",
		"kubernetes:uid:first": "",
		"slurm:lab:0":          "",
	} {
		got, ok := publish.ClaimOf(key)
		if ok != (claim != "") || ok && got != claim {
			t.Errorf("%s is of claim %q, %v", key, got, ok)
		}
	}
	b, err := board.Find("a100-80")
	if err != nil {
		t.Fatal(err)
	}
	for key, offered := range map[string]bool{"kubernetes:uid:0": true, "kubernetes:batch": false, "slurm:lab:7:0": false} {
		n := newWorld(t, b, 2).node()
		n.Status.Leases = append(
			n.Status.Leases,
			api.Lease{ID: "l-1", GPUs: []string{whole}, Tenant: "kubernetes", Grant: "alone", Engine: &api.LeaseEngine{Key: key}},
		)
		found := false
		for _, o := range publish.Offers(n) {
			if o.GPU == whole {
				found = true
				if (o.Withheld == "") != offered || !offered && !strings.Contains(o.Withheld, "lease l-1") {
					t.Errorf("with a lease %s it is withheld: %q", key, o.Withheld)
				}
			}
		}
		if !found {
			t.Errorf("with a lease %s there is no device of the GPU", key)
		}
	}
}
