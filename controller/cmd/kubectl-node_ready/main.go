// Command kubectl-node_ready is a kubectl plugin, `kubectl node-ready`: the state of the fleet, and what a person does about it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	goruntime "runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/controller/internal/plugin/doctor"
	"github.com/imunhatep/kube-node-ready/controller/internal/plugin/manual"
	"github.com/imunhatep/kube-node-ready/controller/internal/plugin/release"
	"github.com/imunhatep/kube-node-ready/controller/internal/plugin/status"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
)

// Set at build time by -ldflags "-X main.version=…".
var (
	version   = "dev"
	commit    = "unknown"
	buildDate = "unknown"
)

const usage = `kubectl node-ready shows which nodes are not verified, and what to do about it.

Usage:
  kubectl node-ready                      the state of the fleet, with a line for each node that is not verified
  kubectl node-ready verify NODE...       remove the label: the nodes are verified again
  kubectl node-ready open NODE...         break glass: remove the startup taint and the failed taint
  kubectl node-ready open --all --yes     the same, of every node
  kubectl node-ready doctor               look for everything that can lock the cluster, after the installation, or
                                          before it: helm template ... | kubectl node-ready doctor -f -

Flags:
%s
Exit codes: 0 done, or no trap found; 1 an error, or a trap found; 2 usage.
`

// options are the flags, and what reads the API server's clock.
type options struct {
	clock      *kube.Clock
	kubeconfig string
	overrides  clientcmd.ConfigOverrides
	release    string
	all, yes   bool
	skip       []string
	files      []string
	gateAll    bool
	version    bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], connect, os.Stdin, os.Stdout, os.Stderr))
}

// run is the whole process except its access to the cluster, so that tests can call it.
func run(ctx context.Context, args []string, connect func(options) (client.Client, error), stdin io.Reader,
	stdout, stderr io.Writer) int {
	o := options{clock: new(kube.Clock)}
	flags := newFlags(&o)
	fail := func(code int, err error) int {
		_, _ = fmt.Fprintf(stderr, "kubectl node-ready: %v\n", err)
		return code
	}
	switch err := flags.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		_, _ = fmt.Fprintf(stdout, usage, flags.FlagUsagesWrapped(120))
		return config.ExitOK
	case err != nil:
		return fail(config.ExitUsage, fmt.Errorf("%w (see --help)", err))
	case o.version:
		_, _ = fmt.Fprintf(stdout, "kubectl-node_ready %s (commit %s, built %s, %s)\n", version, commit, buildDate, goruntime.Version())
		return config.ExitOK
	}
	verb, nodes := "status", flags.Args()
	if len(nodes) > 0 {
		verb, nodes = nodes[0], nodes[1:]
	}
	if err := o.validate(verb, nodes); err != nil {
		return fail(config.ExitUsage, err)
	}
	cluster, err := connect(o)
	if err != nil {
		return fail(config.ExitError, err)
	}
	of, err := o.find(ctx, verb, cluster, stdin)
	if err != nil {
		return fail(config.ExitError, err)
	}
	s := session{cluster: cluster, release: of, out: stdout,
		patcher: manual.Patcher{Settings: of.Settings, Client: cluster, Now: o.clock.ServerTime, Out: stdout}}
	switch {
	case of.Invalid != nil && (verb == "status" || verb == "verify" && of.NodeRulesUnknown):
		return fail(config.ExitError, fmt.Errorf("%w\ntry: %s", of.Invalid, of.Remedy()))
	case of.Invalid != nil && verb != "doctor":
		s.warn(stderr)
	}
	switch verb {
	case "doctor":
		if s.doctor(ctx, o) > 0 {
			return config.ExitError
		}
	case "verify":
		err = s.patcher.Verify(ctx, nodes)
	case "open":
		err = s.open(ctx, nodes, o.all)
	default:
		err = s.status(ctx)
	}
	if err != nil {
		return fail(config.ExitError, err)
	}
	return config.ExitOK
}

// find finds the release that a command is about.
func (o options) find(ctx context.Context, verb string, cluster client.Reader, stdin io.Reader) (release.Release, error) {
	if len(o.files) > 0 {
		return release.FindInFiles(ctx, cluster, o.files, stdin, o.overrides.Context.Namespace, o.release)
	}
	if verb == "doctor" {
		return release.FindOrDefault(ctx, cluster, o.overrides.Context.Namespace, o.release)
	}
	return release.Find(ctx, cluster, o.overrides.Context.Namespace, o.release)
}

func newFlags(o *options) *pflag.FlagSet {
	flags := pflag.NewFlagSet("kubectl node-ready", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.SetOutput(io.Discard) // mistakes are returned
	flags.StringVar(&o.release, "release", "", "Helm release of kube-node-ready, if there are several")
	flags.BoolVar(&o.all, "all", false, "with open: every node")
	flags.BoolVarP(&o.yes, "yes", "y", false, "with open --all: confirm it")
	flags.StringArrayVarP(&o.files, "filename", "f", nil, "with doctor: manifests to read the release from; - is standard input")
	flags.StringSliceVar(&o.skip, "skip", nil, "with doctor: traps to skip")
	flags.BoolVar(&o.gateAll, "gate-all", false, "with doctor: assume that every selected node joins with the startup taint")
	flags.BoolVar(&o.version, "version", false, "print version, commit and build date")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "path of the kubeconfig file")
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.ContextOverrideFlags.Namespace.Description = "namespace of the release; default: all are searched"
	clientcmd.BindOverrideFlags(&o.overrides, flags, names)
	return flags
}

// validate says what is wrong with the arguments.
func (o options) validate(verb string, nodes []string) error {
	if len(o.files) > 0 && verb != "doctor" {
		return errors.New("--filename is only for doctor: " + verb + " reads the release from the cluster")
	}
	switch verb {
	case "status", "doctor":
		if len(nodes) > 0 {
			return fmt.Errorf("%s takes no further argument: %q", verb, nodes[0])
		}
		return doctor.CheckNames(o.skip)
	case "verify":
		if len(nodes) == 0 || o.all {
			return errors.New("verify needs the names of nodes")
		}
	case "open":
		if o.all == (len(nodes) > 0) {
			return errors.New("open needs the names of nodes, or --all")
		}
		if o.all && !o.yes {
			return errors.New("open --all lets workloads onto every node, verified or not: add --yes to do it")
		}
	default:
		return fmt.Errorf("unknown command %q: the commands are verify, open and doctor (see --help)", verb)
	}
	return nil
}

// session is one command about a release.
type session struct {
	cluster client.Client
	release release.Release
	patcher manual.Patcher
	out     io.Writer
}

// warn says what is taken for the settings, where they are invalid.
func (s session) warn(stderr io.Writer) {
	keys := s.release.Settings.Request
	taints := slices.Compact(append([]string{keys.TaintKey, keys.FailedTaintKey}, keys.AlsoRemove...))
	_, _ = fmt.Fprintf(stderr, "kubectl node-ready: warning: %v\n"+
		"Assumed taints: %s; assumed label: %s (the default for each key that is not set)\n",
		s.release.Invalid, strings.Join(taints, ", "), keys.Label)
}

func (s session) doctor(ctx context.Context, o options) (set int) {
	assumed := "No release of kube-node-ready: doctor assumes the chart's defaults"
	if s.release.Planned != nil {
		assumed = "doctor assumes the release " + s.release.Name + " of the manifests"
	}
	if s.release.Planned != nil || s.release.NotInstalled {
		_, _ = fmt.Fprintf(s.out, "%s in the namespace %s\n", assumed, s.release.Namespace)
	}
	found := doctor.Reader{Client: s.cluster}.Read(ctx, s.release)
	found.GateAll = o.gateAll
	return doctor.Report(s.out, found, o.skip)
}

func (s session) open(ctx context.Context, nodes []string, all bool) error {
	if all {
		if s.release.KeysUnknown {
			return errors.New("open --all does not know the release's taint keys: their ConfigMap is gone\n" +
				"try: name the nodes, or kubectl taint nodes NODE KEY-")
		}
		var list corev1.NodeList
		if err := s.cluster.List(ctx, &list); err != nil {
			return err
		}
		if nodes = manual.Tainted(list.Items, s.release.Settings.Request); len(nodes) == 0 {
			_, _ = fmt.Fprintln(s.out, "no node has one of the taints")
		}
	}
	if c := s.release.Controller; c != nil && c.Retaint {
		_, _ = fmt.Fprintf(s.out, "If they fail, the controller may re-taint these nodes after %s, and others now. To stop it: "+
			"kubectl --namespace %s scale deployment %s-controller --replicas=0\n", c.RetaintCoolDown, s.release.Namespace, c.AgentName)
	}
	return s.patcher.Open(ctx, nodes)
}

func (s session) status(ctx context.Context) error {
	var nodes corev1.NodeList
	if err := s.cluster.List(ctx, &nodes); err != nil {
		return err
	}
	pods, err := s.release.Pods(ctx, s.cluster)
	if err != nil {
		return err
	}
	events := func(namespace, kind string) []corev1.Event {
		var list corev1.EventList
		err := s.cluster.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{"involvedObject.kind": kind})
		if err != nil { // reasons are less exact without them
			_, _ = fmt.Fprintf(s.out, "Events not read, some reasons may be missing: %v\n", err)
		}
		return list.Items
	}
	now := time.Now()
	err = status.Of(status.Input{
		Settings: s.release.Settings, Namespace: s.release.Namespace, Nodes: nodes.Items, Pods: pods,
		Events: events("default", "Node"), PodEvents: events(s.release.Namespace, "Pod"),
	}, now).Print(s.out, now)
	seen := doctor.Cluster{Release: s.release, Now: now, Nodes: doctor.Read[[]corev1.Node]{Value: nodes.Items},
		NodePools: doctor.Reader{Client: s.cluster}.NodePools(ctx)}
	for _, text := range seen.LeftStartupTaints() {
		_, _ = fmt.Fprintln(s.out, text)
	}
	return err
}
