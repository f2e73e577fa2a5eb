package request

import (
	"fmt"
	"net/http"

	"github.com/gpushare/gpushare/api"
)

// Role is the role that a request asks for; empty: each role of its caller. It asks for the role of an engine, or is refused.
func Role(q *http.Request) (string, *api.Error) {
	switch role := q.Header.Values(api.RoleHeader); {
	case len(role) == 0:
		return "", nil
	case len(role) > 1 || role[0] != api.RoleEngine:
		return "", &api.Error{
			Kind:    api.KindInvalid,
			Message: fmt.Sprintf("cannot answer with role %q: a request may ask for %s alone", role, api.RoleEngine),
			Hint:    "leave the header " + api.RoleHeader + " out: the caller then has each of its roles",
		}
	}
	return api.RoleEngine, nil
}
