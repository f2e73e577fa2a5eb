package front

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"reflect"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/request"
)

// understood is a request as it is sent to the daemon: made from what was understood, never from what arrived.
type understood struct {
	method string
	target string // escaped
	role   string // that the caller asks for; empty: each of its roles
	body   []byte
	taken  int  // bytes of the caller's memory that the body takes
	last   bool // the connection ends with the answer: its body was not read
}

// understand decodes a request of a route, or returns why it is refused.
func (f *Front) understand(w http.ResponseWriter, q *http.Request, r *route, uid int) (*understood, error) {
	a := &understood{method: q.Method, target: target(q, r.Pattern)}
	var refused *api.Error
	if a.role, refused = request.Role(q); refused != nil {
		return a, refused
	}
	if r.Admin {
		a.last = q.ContentLength != 0
		return a, nil
	}
	if r.body == nil && q.ContentLength != 0 {
		return a, request.NoBody(r.What)
	}
	values, err := r.Query.Parse(q.URL.RawQuery)
	if err != nil {
		return a, err
	}
	if len(values) > 0 {
		a.target += "?" + values.Encode()
	}
	if r.body == nil {
		return a, nil
	}
	b, err := request.Body(w, q, func(n int) error {
		if err := f.bodies.Take(uid, n); err != nil {
			return err
		}
		a.taken += n
		return nil
	})
	if err != nil {
		return a, err
	}
	if len(b) > request.OwnBody {
		select {
		case f.long <- struct{}{}:
			defer func() { <-f.long }()
		case <-q.Context().Done():
			return a, q.Context().Err()
		}
	}
	a.body, err = Canonical(b, r.body)
	return a, err
}

// Canonical decodes a body strictly as a type and encodes what was understood.
func Canonical(b []byte, t reflect.Type) ([]byte, error) {
	v := reflect.New(t)
	if err := request.Decode(b, v.Interface()); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false) // It would make a body up to six times as long.
	if err := e.Encode(v.Interface()); err != nil {
		return nil, &api.Error{Kind: api.KindInvalid, Message: "cannot read the request: " + err.Error()}
	}
	return out.Bytes(), nil
}

// target is the path of a request, from the pattern of its route.
func target(q *http.Request, pattern string) string {
	parts := strings.Split(pattern, "/")
	for i, part := range parts {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			parts[i] = url.PathEscape(q.PathValue(strings.TrimSuffix(name, "}")))
		}
	}
	return strings.Join(parts, "/")
}
