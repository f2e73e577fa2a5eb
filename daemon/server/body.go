package server

import (
	"fmt"
	"reflect"

	"github.com/gpushare/gpushare/internal/request"
)

// Document is the body of a route that reads it itself, as YAML.
type Document struct{}

// Decode reads the body of a request as the type that its route declares, strictly: see package request.
func Decode[T any](c *Call) (*T, error) {
	if c.route != nil && reflect.TypeFor[T]() != reflect.TypeOf(c.route.Body) {
		return nil, fmt.Errorf("internal error: %s %s declares a body of another type", c.route.Method, c.route.Pattern)
	}
	b, err := c.Body()
	if err != nil {
		return nil, err
	}
	kind := arriving
	if len(b) > request.OwnBody {
		kind = longBodies
	}
	if err := c.begin(kind); err != nil {
		return nil, err
	}
	defer c.slot.end()
	out := new(T)
	if err := request.Decode(b, out); err != nil {
		return nil, err
	}
	return out, nil
}

// Body reads the whole body, within a deadline and with limited memory. Keep says how much of it is kept.
func (c *Call) Body() ([]byte, error) { return request.Body(c.W, c.R, c.take) }

func (c *Call) take(n int) error {
	if c.bodies == nil {
		return nil // a test without a server
	}
	if err := c.bodies.Take(c.Caller.UID, n); err != nil {
		return err
	}
	c.body += n
	return nil
}

// Keep says that at most n bytes of what the body had are kept from now on.
func (c *Call) Keep(n int) {
	if n < c.body {
		c.bodies.Give(c.Caller.UID, c.body-n)
		c.body = n
	}
}
