package server_test

import (
	"io"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/internal/request"
)

// As many requests as a user may have wait at once can arrive at once: their bodies have place, also those of some kilobytes.
func TestAsManyBodiesAsStarts(t *testing.T) {
	t.Parallel()
	for _, size := range []int{100, 4000, 8000, 12000} {
		var m request.BodyMemory
		for i := range server.Starts.Most {
			body := io.Reader(strings.NewReader(strings.Repeat("x", size)))
			if _, err := request.ReadBody(body, func(n int) error { return m.Take(1000, n) }); err != nil {
				t.Errorf("%d bodies of %d bytes have place, of %d: %v", i, size, server.Starts.Most, err)
				break
			}
		}
	}
}
