//go:build engines

package engines

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// answerLimit is for one answer of the apiserver.
const answerLimit = 16 << 20

// cluster is the API of Kubernetes.
type cluster struct {
	address string
	client  *http.Client
}

// refusal is an answer that is not a success.
type refusal struct {
	code int
	text string
}

func (r *refusal) Error() string { return fmt.Sprintf("the apiserver answers %d: %s", r.code, r.text) }

// request sends an object, if there is one, and reads the answer into another, if there is one.
func (c *cluster) request(ctx context.Context, method, path string, send, into any) error {
	var body io.Reader
	if send != nil {
		b, err := json.Marshal(send)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.address+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := boundedread.All(resp.Body, answerLimit)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return &refusal{resp.StatusCode, string(b)}
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(b, into)
}

// kinds are the paths of what the tests create.
var kinds = map[string]string{
	"Pod":                   "/api/v1/namespaces/default/pods",
	"DeviceClass":           "/apis/resource.k8s.io/v1/deviceclasses",
	"ResourceClaim":         "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims",
	"ResourceClaimTemplate": "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates",
}

// create creates the objects of a YAML text with several documents.
func (c *cluster) create(ctx context.Context, text string) error {
	for d := yaml.NewDecoder(bytes.NewReader([]byte(text))); ; {
		var object map[string]any
		if err := d.Decode(&object); err == io.EOF { //nolint:errorlint // the decoder returns it as it is
			return nil
		} else if err != nil {
			return err
		}
		kind := fmt.Sprint(object["kind"])
		if kinds[kind] == "" {
			return fmt.Errorf("cannot create a %s: its path is not known here", kind)
		}
		if err := c.request(ctx, http.MethodPost, kinds[kind], object, nil); err != nil {
			return fmt.Errorf("cannot create %s %v: %w", kind, object["metadata"], err)
		}
	}
}

// await waits until the object of that name is as accept wants it, and returns it. An object that is not there is a nil.
func await[T any](ctx context.Context, c *cluster, path, name string, accept func(*T) bool) (*T, error) {
	all, err := awaitAll(ctx, c, path, "metadata.name="+name, func(all map[string]*T) bool { return accept(all[name]) })
	return all[name], err
}

// awaitAll waits until the objects that a field selector selects, by name, are as accept wants them, and returns them. It watches: each
// state that the apiserver has is seen.
func awaitAll[T any](
	ctx context.Context, c *cluster, path, selector string, accept func(map[string]*T) bool,
) (map[string]*T, error) {
	w := &watch[T]{cluster: c, path: path, selector: selector, accept: accept}
	for {
		done, err := w.once(ctx)
		if done {
			return w.objects, nil
		}
		// A watch ends after some minutes, and when the apiserver is restarted.
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s %s: not as awaited: %w: %s", path, selector, errors.Join(ctx.Err(), err), w.last)
		}
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}

// watch is one wait for objects.
type watch[T any] struct {
	cluster        *cluster
	path, selector string
	accept         func(map[string]*T) bool
	objects        map[string]*T
	last           json.RawMessage // what has changed last
}

// once lists the objects and watches them until they are accepted or the watch ends.
func (w *watch[T]) once(ctx context.Context) (done bool, err error) {
	var list struct {
		Metadata struct{ ResourceVersion string }
		Items    []json.RawMessage
	}
	if err := w.cluster.request(ctx, http.MethodGet, w.path+"?"+w.query(nil), nil, &list); err != nil {
		return false, err
	}
	w.objects = map[string]*T{}
	for _, raw := range list.Items {
		if err := w.take("ADDED", raw); err != nil {
			return false, err
		}
	}
	if w.accept(w.objects) {
		return true, nil
	}
	query := w.query(url.Values{"watch": {"1"}, "resourceVersion": {list.Metadata.ResourceVersion}})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.cluster.address+w.path+"?"+query, nil)
	if err != nil {
		return false, err
	}
	resp, err := w.cluster.client.Do(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	for d := json.NewDecoder(resp.Body); ; {
		var e struct {
			Type   string
			Object json.RawMessage
		}
		if err := d.Decode(&e); err != nil {
			return false, err
		}
		if err := w.take(e.Type, e.Object); err != nil {
			return false, err
		}
		if w.accept(w.objects) {
			return true, nil
		}
	}
}

func (w *watch[T]) query(more url.Values) string {
	q := url.Values{}
	if w.selector != "" {
		q.Set("fieldSelector", w.selector)
	}
	for k, v := range more {
		q[k] = v
	}
	return q.Encode()
}

// take applies one event.
func (w *watch[T]) take(event string, raw json.RawMessage) error {
	var named struct{ Metadata struct{ Name string } }
	if err := json.Unmarshal(raw, &named); err != nil {
		return err
	}
	w.last = raw
	switch event {
	case "ADDED", "MODIFIED":
		object := new(T)
		w.objects[named.Metadata.Name] = object
		return json.Unmarshal(raw, object)
	case "DELETED":
		delete(w.objects, named.Metadata.Name)
		return nil
	}
	return fmt.Errorf("the watch ends: %s", raw)
}
