package request_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/internal/request"
)

// TestWhatIsTooLarge: a request with too many bytes is named as what it is.
func TestWhatIsTooLarge(t *testing.T) {
	for path, want := range map[string]string{
		"/v1/spec":   "the document is larger than 1 MiB",
		"/v1/leases": "its command and, of a detached one, its environment",
		"/v1/reload": "the request is larger than 1 MiB",
	} {
		q := httptest.NewRequestWithContext(t.Context(), "POST", path, strings.NewReader(strings.Repeat(" ", request.MaxBody+1)))
		_, err := request.Body(httptest.NewRecorder(), q, func(int) error { return nil })
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "spec") {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}
