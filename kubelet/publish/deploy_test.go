package publish_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/board"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/kubelet/publish"
)

// manifests are the objects of a file of deploy, decoded strictly: a key that the API does not know is an error.
func manifests(t *testing.T, name string) []runtime.Object {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "deploy", name))
	if err != nil {
		t.Fatal(err)
	}
	strict := jsonserializer.NewSerializerWithOptions(
		jsonserializer.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, jsonserializer.SerializerOptions{Yaml: true, Strict: true},
	)
	var out []runtime.Object
	for r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(b))); ; {
		document, err := r.Read()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		o, _, err := strict.Decode(document, nil, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		out = append(out, o)
	}
}

// matches are the names of the published devices that all selectors select. A selector that does not compile fails the test.
func matches(t *testing.T, of string, devices map[string]resourceapi.Device, selectors []resourceapi.DeviceSelector) (names []string) {
	t.Helper()
	compiler := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true})
	for name, d := range devices {
		all := len(selectors) > 0
		for _, s := range selectors {
			r := compiler.CompileCELExpression(s.CEL.Expression, cel.Options{})
			if r.Error != nil {
				t.Fatalf("%s: %s: %v", of, s.CEL.Expression, r.Error)
			}
			ok, _, err := r.DeviceMatches(t.Context(), cel.Device{
				Driver:                   publish.Driver,
				AllowMultipleAllocations: d.AllowMultipleAllocations,
				Attributes:               d.Attributes,
				Capacity:                 d.Capacity,
			})
			if err != nil {
				t.Errorf("%s: %s: %v", of, s.CEL.Expression, err)
			}
			if all = all && ok; !all {
				break // The allocator does not evaluate the next one either: an attribute may be missing.
			}
		}
		if all {
			names = append(names, name)
		}
	}
	return names
}

// The manifests are what the API takes, the classes select devices that are published, each those of its type, and the examples select
// some of them.
func TestManifests(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("..", "deploy", "*.yaml"))
	if err != nil || len(files) != 4 {
		t.Fatalf("the manifests are %v: %v", files, err)
	}
	b, err := board.Find("a100-80")
	if err != nil {
		t.Fatal(err)
	}
	devices := devicesOf(newWorld(t, b, 2).node())
	classes := map[string]*resourceapi.DeviceClass{}
	for _, o := range manifests(t, "classes.yaml") {
		c, ok := o.(*resourceapi.DeviceClass)
		if !ok {
			t.Errorf("a class is %T", o)
			continue
		}
		classes[c.Name] = c
		want := strings.TrimPrefix(c.Name, "gpushare-")
		if want == "shared" {
			want = publish.TypeTimeslice
		}
		names := matches(t, c.Name, devices, c.Spec.Selectors)
		if len(names) == 0 && want != publish.TypeMPS { // A GPU has one mode, and the node of the tests has none for MPS.
			t.Errorf("class %s selects no device", c.Name)
		}
		for _, name := range names {
			if got := *devices[name].Attributes["type"].StringValue; got != want {
				t.Errorf("class %s selects %s of type %s", c.Name, name, got)
			}
		}
	}
	templates := 0
	for _, o := range manifests(t, "examples.yaml") {
		template, ok := o.(*resourceapi.ResourceClaimTemplate)
		if !ok {
			continue
		}
		templates++
		for _, r := range template.Spec.Spec.Devices.Requests {
			class := classes[r.Exactly.DeviceClassName]
			if class == nil {
				t.Errorf("%s has class %s, which is not there", template.Name, r.Exactly.DeviceClassName)
				continue
			}
			names := matches(
				t,
				template.Name,
				devices,
				append(append([]resourceapi.DeviceSelector{}, class.Spec.Selectors...), r.Exactly.Selectors...),
			)
			if len(names) == 0 {
				t.Errorf("%s selects no device", template.Name)
			}
			if r.Exactly.Capacity == nil {
				continue
			}
			for what := range r.Exactly.Capacity.Requests {
				if _, ok := devices[names[0]].Capacity[what]; !ok {
					t.Errorf("%s requests %s, which device %s does not have", template.Name, what, names[0])
				}
			}
		}
	}
	if templates != 3 {
		t.Errorf("there are %d examples of claims", templates)
	}
	if n := len(manifests(t, "daemonset.yaml")); n != 7 {
		t.Errorf("the DaemonSet has %d objects", n)
	}
	text, err := os.ReadFile(filepath.Join("..", "deploy", "node.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := spec.Decode("node.yaml", text)
	if err != nil {
		t.Fatalf("the spec of a node: %v", err)
	}
	if !s.Node.Engine.Freezes(api.OwnerKubernetes) {
		t.Error("the shares of the examples are not enforced with the spec of a node")
	}
}

// The DaemonSet is admitted, is not evicted before what it serves, and is updated without a time in which no driver answers the kubelet.
func TestDaemonSet(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, o := range manifests(t, "daemonset.yaml") {
		switch o := o.(type) {
		case *corev1.Namespace:
			seen++
			if o.Labels["pod-security.kubernetes.io/enforce"] != "privileged" {
				t.Errorf("its namespace has the labels %v", o.Labels)
			}
		case *appsv1.DaemonSet:
			seen++
			if p := o.Spec.Template.Spec.PriorityClassName; p != "system-node-critical" {
				t.Errorf("its priority class is %q", p)
			}
			u := o.Spec.UpdateStrategy.RollingUpdate
			if u == nil || u.MaxSurge.IntValue() != 1 || u.MaxUnavailable.IntValue() != 0 {
				t.Errorf("it is updated by %+v", o.Spec.UpdateStrategy)
			}
		}
	}
	if seen != 2 {
		t.Errorf("it has %d of the two objects", seen)
	}
}

// A part of a GPU says whether the spec permits what enforces its share.
func TestShareEnforced(t *testing.T) {
	t.Parallel()
	b, err := board.Find("a100-80")
	if err != nil {
		t.Fatal(err)
	}
	for _, permitted := range []bool{false, true} {
		n := newWorld(t, b, 2).node()
		n.Freezes = permitted
		a := devicesOf(n)["gpu-shared-part"].Attributes["freezePermitted"]
		if a.BoolValue == nil || *a.BoolValue != permitted {
			t.Errorf("permitted is %v, and the attribute %+v", permitted, a)
		}
	}
}
