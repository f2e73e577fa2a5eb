package cli_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
)

// endless answers an operation that never ends.
func endless() routes {
	versions := operation("done", nil)
	return routes{
		"GET /v1/status": labNode(),
		"GET /v1/operations/op-13": http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Query().Has("wait") {
				<-q.Context().Done()
				return
			}
			emitting(versions[1])(w, q)
		}),
	}
}

// The wait ends by its own limit, and says that the operation does not.
func TestWaitForAnOperationEnds(t *testing.T) {
	for _, args := range []string{"operation wait op-13 --timeout 50ms", "operation wait op-13 --timeout 50ms --json"} {
		r := run(t, endless(), "", strings.Fields(args)...)
		if r.code != api.ExitConflict || !strings.Contains(r.err, "op-13 still runs after 50ms") ||
			!strings.Contains(r.err, "it continues") {
			t.Errorf("%s: exit code %d:\n%s", args, r.code, r.err)
		}
	}
}

func TestInterruptedWaitForAnOperation(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := endless()
	answer := r["GET /v1/operations/op-13"].(http.HandlerFunc)
	r["GET /v1/operations/op-13"] = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Query().Has("wait") {
			cancel()
		}
		answer(w, q)
	})
	got := runOn(ctx, fakeDaemon(t, r), "", "operation", "wait", "op-13")
	if got.code != 130 || !strings.Contains(got.err, "interrupted") ||
		!strings.Contains(got.err, "'gpushare operation wait op-13' waits for it") {
		t.Errorf("exit code %d:\n%s", got.code, got.err)
	}
}

func TestCompletionOfOperations(t *testing.T) {
	for _, verb := range []string{"show", "wait"} {
		words, directive := offered(run(t, routes{"GET /v1/operations": labOperations()}, "", "__complete", "operation", verb, ""))
		want := []string{
			"op-13\tapply by root, running: start MPS",
			"retry-of-2\tretry by alice\ufffd[2J, done",
			"apply-11\tapply by root, degraded: GPU 10 is held: MPS does not start",
		}
		if diff := cmp.Diff(want, words); diff != "" || directive != ":36" { // no files, and in this order
			t.Errorf("%s: directive %s (-want +got):\n%s", verb, directive, diff)
		}
		if words, _ := offered(run(t, routes{}, "", "__complete", "operation", verb, "op-13", "")); len(words) > 0 {
			t.Errorf("%s: a second id is offered: %q", verb, words)
		}
	}
	words, _ := offered(
		run(
			t, routes{"GET /v1/operations": &api.Error{Kind: api.KindDenied, Message: "you may not"}}, "", "__complete", "operation",
			"wait", "",
		),
	)
	if slices.Contains(words, "you may not") || len(words) > 0 {
		t.Errorf("offered without a right: %q", words)
	}
}
