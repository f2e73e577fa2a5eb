package cli_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/gpushare/gpushare/api"
)

func labHistory() api.SpecHistory {
	at := func(h int) time.Time { return noon.Add(time.Duration(h) * time.Hour) }
	return api.SpecHistory{SchemaVersion: 1, Revisions: []api.SpecRevision{
		{Generation: 5, By: "root", At: at(0)},
		{
			Generation: 6,
			By:         "alice",
			At:         at(20),
			Changes: []string{
				"gpus.0.mode: mig → timeslice",
				"+ tenants.vision.grants.dev",
				"tenants.vision.members.users: + carol, - bob",
			},
		},
		{Generation: 7, By: "root", At: at(21), Unmanaged: "all"},
		{Generation: 8, By: "the settings' spec_file", At: at(22), InForce: true, Changes: []string{"node.enforce: observe → on"}},
	}}
}

func labRevision(generation uint64, mode string) api.SpecDocument {
	return api.SpecDocument{
		Generation: generation,
		By:         "root",
		At:         noon,
		YAML:       "version: v1\ngpus:\n- select: {index: 0}\n  mode: " + mode + "\n",
	}
}

// rollingBack accepts only the spec of one generation, for as long as another one is in force.
func rollingBack(to, inForce string) routes {
	return routes{
		"GET /v1/history":       labHistory(),
		"GET /v1/history/" + to: labRevision(5, "mps"),
		"PUT /v1/spec": http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			doc, _ := io.ReadAll(q.Body)
			if match := strings.Trim(
				q.Header.Get("If-Match"),
				`"`,
			); match != inForce || string(doc) != labRevision(5, "mps").YAML ||
				q.URL.Query().Get("file") != "generation "+to {
				http.Error(w, "{}", http.StatusTeapot)
				return
			}
			checked := q.URL.Query().Has("check")
			_ = json.NewEncoder(w).Encode(api.ApplyResult{Generation: 9, Changed: true, Checked: checked, Plan: api.Plan{Empty: true}})
		}),
	}
}
