package request

import (
	"net/http"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
)

// Methods are those that routes have, and HEAD, which net/http adds to GET.
func Methods() []string {
	return []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodPost, http.MethodDelete}
}

// Outside returns why a request reaches no route of mux: with the HTTP status, and the methods that its path has.
func Outside(mux *http.ServeMux, q *http.Request) (status int, allow []string, e *api.Error) {
	for _, m := range Methods() {
		other := &http.Request{Method: m, URL: q.URL, Host: q.Host}
		if _, pattern := mux.Handler(other); pattern != "/" {
			allow = append(allow, m)
		}
	}
	if len(allow) > 0 {
		return http.StatusMethodNotAllowed, allow, &api.Error{
			Kind:    api.KindInvalid,
			Message: "cannot " + Short(q.Method) + " " + Short(q.URL.Path) + ": its methods are " + strings.Join(allow, ", "),
		}
	}
	return http.StatusNotFound, nil, &api.Error{
		Kind:    api.KindNotFound,
		Message: "there is no " + Short(q.Method) + " " + Short(q.URL.Path),
		Hint:    "the command line and the daemon may be of different versions: see 'gpushare version'",
	}
}

// Browser returns the refusal of a request that a browser sent; nil for others. A page of another site cannot make a request
// without these headers, nor choose the name of the host.
func Browser(q *http.Request) *api.Error {
	if q.Header.Get("Origin") == "" && q.Header.Get("Referer") == "" && slices.Contains([]string{"gpushare", "localhost"}, q.Host) {
		return nil
	}
	return &api.Error{
		Kind:    api.KindDenied,
		Message: "requests from browsers are refused",
		Hint:    "use the command line, or 'curl --unix-socket … http://localhost/v1/status'",
	}
}

// NoBody is the refusal of a request with a body where none is read. what is the action of the route.
func NoBody(what string) *api.Error {
	return &api.Error{Kind: api.KindInvalid, Message: "cannot " + what + ": this request has no body", Hint: "its options are in the query"}
}
