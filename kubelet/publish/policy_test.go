package publish_test

import (
	"context"
	"fmt"
	"testing"

	celgo "github.com/google/cel-go/cel"
	celtypes "github.com/google/cel-go/common/types"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/kubernetes/scheme"
)

// expression is one of a policy. A variable has a name.
type expression struct {
	text, name string
	returns    *celgo.Type
}

func (e expression) GetExpression() string      { return e.text }
func (e expression) GetName() string            { return e.name }
func (e expression) ReturnTypes() []*celgo.Type { return []*celgo.Type{e.returns} }

// policy is a ValidatingAdmissionPolicy, compiled as the API server does it.
type policy struct {
	compiler           *cel.CompositedCompiler
	matches, validates cel.ConditionEvaluator
}

func compile(t *testing.T, of *admissionv1.ValidatingAdmissionPolicy) *policy {
	t.Helper()
	c, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	options := cel.OptionalVariableDeclarations{}
	for _, v := range of.Spec.Variables {
		e := expression{text: v.Expression, name: v.Name, returns: celgo.AnyType}
		if r := c.CompileAndStoreVariable(e, options, environment.NewExpressions); r.Error != nil {
			t.Fatalf("variable %s does not compile: %v", v.Name, r.Error)
		}
	}
	var matches, validates []cel.ExpressionAccessor
	for _, m := range of.Spec.MatchConditions {
		matches = append(matches, expression{text: m.Expression, returns: celgo.BoolType})
	}
	for _, v := range of.Spec.Validations {
		validates = append(validates, expression{text: v.Expression, returns: celgo.BoolType})
	}
	p := &policy{
		compiler:  c,
		matches:   c.CompileCondition(matches, options, environment.NewExpressions),
		validates: c.CompileCondition(validates, options, environment.NewExpressions),
	}
	for _, err := range append(p.matches.CompilationErrors(), p.validates.CompilationErrors()...) {
		t.Fatalf("the policy does not compile: %v", err)
	}
	return p
}

// admits reports whether the policy lets a request through. An error is a refusal, as failurePolicy says.
func (p *policy) admits(t *testing.T, a admission.Attributes) bool {
	t.Helper()
	v := &admission.VersionedAttributes{Attributes: a, VersionedKind: a.GetKind()}
	v.VersionedObject.Set(a.GetObject())
	v.VersionedOldObject.Set(a.GetOldObject())
	all := func(e cel.ConditionEvaluator) bool {
		r := cel.CreateAdmissionRequest(a, metav1.GroupVersionResource(a.GetResource()), metav1.GroupVersionKind(a.GetKind()))
		results, _, err := e.ForInput(
			p.compiler.CreateContext(context.Background()), v, r, cel.OptionalVariableBindings{}, nil, 1_000_000,
		)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			if r.Error != nil {
				t.Errorf("an expression has no value: %v", r.Error)
			}
			if r.EvalResult != celtypes.True {
				return false
			}
		}
		return true
	}
	return !all(p.matches) || all(p.validates)
}

// What the service account of the DaemonSet writes is of its node, and its slices are of gpushare. Other users are none of the policy's.
func TestPolicyOfTheDaemonSet(t *testing.T) {
	t.Parallel()
	var p *policy
	account, name := "", ""
	bound := false
	for _, o := range manifests(t, "daemonset.yaml") {
		switch o := o.(type) {
		case *admissionv1.ValidatingAdmissionPolicy:
			name, p = o.Name, compile(t, o)
			if o.Spec.FailurePolicy == nil || *o.Spec.FailurePolicy != admissionv1.Fail {
				t.Errorf("what the policy cannot judge is let through")
			}
		case *admissionv1.ValidatingAdmissionPolicyBinding:
			bound = o.Spec.PolicyName == name && len(o.Spec.ValidationActions) == 1 && o.Spec.ValidationActions[0] == admissionv1.Deny
		case *corev1.ServiceAccount:
			account = fmt.Sprintf("system:serviceaccount:%s:%s", o.Namespace, o.Name)
		}
	}
	if p == nil || !bound || account == "" {
		t.Fatalf("there is policy %q, bound: %v, for %q", name, bound, account)
	}
	driver := func(node string) user.Info {
		u := &user.DefaultInfo{Name: account}
		if node != "" {
			u.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
		}
		return u
	}
	slice := func(node, driver string) runtime.Object {
		s := &resourceapi.ResourceSlice{}
		s.Spec.Driver = driver
		if node != "" {
			s.Spec.NodeName = &node
		}
		return s
	}
	pod := func(node string) runtime.Object {
		p := &corev1.Pod{}
		p.Spec.NodeName = node
		return p
	}
	for _, c := range []struct {
		name     string
		by       user.Info
		op       admission.Operation
		old, new runtime.Object
		want     bool
	}{
		{"its slice", driver("a"), admission.Create, nil, slice("a", "gpushare.dev"), true},
		{"its slice again", driver("a"), admission.Update, slice("a", "gpushare.dev"), slice("a", "gpushare.dev"), true},
		{"the removal of its slice", driver("a"), admission.Delete, slice("a", "gpushare.dev"), nil, true},
		{"a slice of another node", driver("a"), admission.Create, nil, slice("b", "gpushare.dev"), false},
		{"the removal of a slice of another node", driver("a"), admission.Delete, slice("b", "gpushare.dev"), nil, false},
		{"a slice of no node", driver("a"), admission.Create, nil, slice("", "gpushare.dev"), false},
		{"a slice of another driver", driver("a"), admission.Create, nil, slice("a", "gpu.example"), false},
		{"a token of no pod", driver(""), admission.Create, nil, slice("a", "gpushare.dev"), false},
		{"a token of no pod, a slice of no node", driver(""), admission.Create, nil, slice("", "gpushare.dev"), false},
		{"a pod of its node", driver("a"), admission.Update, pod("a"), pod("a"), true},
		{"a pod of another node", driver("a"), admission.Update, pod("b"), pod("b"), false},
		{"a pod of no node", driver("a"), admission.Update, pod(""), pod(""), false},
		{"another user", &user.DefaultInfo{Name: "system:node:b"}, admission.Create, nil, slice("b", "gpushare.dev"), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := c.new
			if o == nil {
				o = c.old
			}
			kinds, _, err := scheme.Scheme.ObjectKinds(o)
			if err != nil {
				t.Fatal(err)
			}
			resource, sub := schema.GroupVersionResource{Group: "resource.k8s.io", Version: "v1", Resource: "resourceslices"}, ""
			if kinds[0].Kind == "Pod" {
				resource, sub = schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "status"
			}
			a := admission.NewAttributesRecord(c.new, c.old, kinds[0], "", "x", resource, sub, c.op, nil, false, c.by)
			if got := p.admits(t, a); got != c.want {
				t.Errorf("it is admitted: %v, not %v", got, c.want)
			}
		})
	}
}
