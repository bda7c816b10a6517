// Command kubectl-node_ready is a kubectl plugin, `kubectl node-ready`: the state of the fleet, and what a person does about it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/controller/internal/plugin/doctor"
	"github.com/imunhatep/kube-node-ready/controller/internal/plugin/installation"
	"github.com/imunhatep/kube-node-ready/controller/internal/plugin/manual"
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
  kubectl node-ready open --all --yes     the same, for every node of the release
  kubectl node-ready doctor               look for what can lock the cluster; before the installation:
                                          helm template ... | kubectl node-ready doctor -f -

If the cluster has several releases of kube-node-ready, the first command shows each of them, and every other command needs
--release. A node that another release verifies or has re-tainted is left to that release.

Flags:
%s
Exit codes: 0 done, or no trap found; 1 an error, or a trap found; 2 usage.
`

// options are the arguments, and what reads the API server's clock.
type options struct {
	verb, release, kubeconfig          string
	nodes, files, skip                 []string
	all, yes, gateAll, askDNS, version bool
	overrides                          clientcmd.ConfigOverrides
	clock                              *kube.Clock
}

// streams are the standard streams of the process.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], connect, streams{os.Stdin, os.Stdout, os.Stderr}))
}

// connector connects to the cluster.
type connector func(options) (client.Client, *rest.Config, error)

// run is the whole process except its access to the cluster, so that tests can call it.
func run(ctx context.Context, args []string, connect connector, std streams) int {
	program := config.Program{Name: "kubectl node-ready", Version: version, Commit: commit, BuildDate: buildDate}
	o, err := parse(args, std.out)
	if code, ends := program.Ends(o.version, err, std.out, std.err); ends {
		return code
	}
	err = execute(ctx, o, connect, std)
	if err == nil {
		return config.ExitOK
	}
	if !errors.Is(err, errTraps) { // doctor has printed them
		_, _ = fmt.Fprintf(std.err, "%s: %v\n", program.Name, err)
	}
	return config.ExitError
}

// parse reads the arguments. It prints the help if that is asked for. Other errors are mistakes in the arguments.
func parse(args []string, out io.Writer) (options, error) {
	o := options{clock: new(kube.Clock), verb: "status"}
	flags := newFlags(&o)
	err := flags.Parse(args)
	if errors.Is(err, pflag.ErrHelp) {
		_, _ = fmt.Fprintf(out, usage, flags.FlagUsagesWrapped(120))
		return o, err
	}
	if err != nil {
		return o, config.UsageError{err.Error() + " (see --help)"}
	}
	if rest := flags.Args(); len(rest) > 0 {
		o.verb, o.nodes = rest[0], rest[1:]
	}
	if err := o.validate(); err != nil {
		return o, config.UsageError{err.Error()}
	}
	return o, nil
}

// execute runs a command about a release. The status may be about several.
func execute(ctx context.Context, o options, connect connector, std streams) error {
	cluster, config, err := connect(o)
	if err != nil {
		return err
	}
	var releases []installation.Release
	if namespace := o.overrides.Context.Namespace; len(o.files) > 0 {
		releases, err = installation.FindInFiles(ctx, cluster, o.files, std.in, namespace, o.release)
	} else {
		releases, err = installation.Find(ctx, cluster, namespace, o.release, o.verb != "status")
	}
	if err != nil {
		return err
	}
	for _, of := range releases {
		s := session{cluster: cluster, config: config, release: of, out: std.out,
			patcher: manual.Patcher{Settings: of.Settings, Client: cluster, Now: o.clock.ServerTime, Out: std.out}}
		err = errors.Join(err, s.execute(ctx, o, std))
	}
	return err
}

func (s session) execute(ctx context.Context, o options, std streams) error {
	of := s.release
	// open and doctor work with whatever is known.
	needed := map[string]installation.Known{"status": installation.Everything, "verify": installation.NodeRules}[o.verb]
	switch {
	case of.Known == installation.Unreadable:
		return of.Invalid
	case of.Known < needed:
		return fmt.Errorf("%w\ntry: %s", of.Invalid, of.Remedy())
	case of.Invalid != nil && o.verb != "doctor":
		keys := of.Settings.Keys
		taints := slices.Compact(append([]string{keys.TaintKey, keys.FailedTaintKey}, keys.AlsoRemove...))
		_, _ = fmt.Fprintf(std.err, "kubectl node-ready: warning: %v\n"+
			"Assumed taints: %s; assumed label: %s (the default for each key that is not set)\n",
			of.Invalid, strings.Join(taints, ", "), keys.Label)
	}
	switch o.verb {
	case "doctor":
		return s.doctor(ctx, o)
	case "verify":
		return s.patcher.Verify(ctx, o.nodes)
	case "open":
		return s.open(ctx, o)
	default:
		return s.status(ctx)
	}
}

func newFlags(o *options) *pflag.FlagSet {
	flags := pflag.NewFlagSet("kubectl node-ready", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.SetOutput(io.Discard) // mistakes are returned
	flags.StringVar(&o.release, "release", "", "Helm release of kube-node-ready, if there are several")
	flags.BoolVar(&o.all, "all", false, "with open: every node of the release")
	flags.BoolVarP(&o.yes, "yes", "y", false, "with open --all: confirm it")
	flags.StringArrayVarP(&o.files, "filename", "f", nil, "with doctor: manifests to read the release from; - is standard input")
	flags.StringSliceVar(&o.skip, "skip", nil, "with doctor: traps to skip")
	flags.BoolVar(&o.gateAll, "gate-all", false, "with doctor: assume that every selected node joins with the startup taint")
	flags.BoolVar(&o.askDNS, "ask-dns", false, "with doctor: resolve the configured names in a DNS pod (needs pods/portforward)")
	flags.BoolVar(&o.version, "version", false, "print version, commit and build date")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "path of the kubeconfig file")
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.ContextOverrideFlags.Namespace.Description = "namespace of the release; default: all are searched"
	clientcmd.BindOverrideFlags(&o.overrides, flags, names)
	return flags
}

// validate returns the first mistake in the arguments.
func (o options) validate() error {
	switch {
	case !slices.Contains([]string{"status", "doctor", "verify", "open"}, o.verb):
		return fmt.Errorf("unknown command %q: the commands are verify, open and doctor (see --help)", o.verb)
	case len(o.files) > 0 && o.verb != "doctor":
		return errors.New("--filename is only for doctor: " + o.verb + " reads the release from the cluster")
	case len(o.nodes) > 0 && o.verb != "verify" && o.verb != "open":
		return fmt.Errorf("%s takes no further argument: %q", o.verb, o.nodes[0])
	case o.verb == "verify" && (len(o.nodes) == 0 || o.all):
		return errors.New("verify needs the names of nodes")
	case o.verb == "open" && o.all == (len(o.nodes) > 0):
		return errors.New("open needs the names of nodes, or --all")
	case o.verb == "open" && o.all && !o.yes:
		return errors.New("open --all lets workloads onto every node of the release, verified or not: add --yes to do it")
	}
	return doctor.CheckNames(o.skip)
}

// session is one command about a release.
type session struct {
	cluster client.Client
	config  *rest.Config // of the cluster
	release installation.Release
	patcher manual.Patcher
	out     io.Writer
}

// errTraps means that doctor has found a trap.
var errTraps = errors.New("doctor has found a trap")

func (s session) doctor(ctx context.Context, o options) error {
	if s.release.Planned != nil {
		_, _ = fmt.Fprintf(s.out, "doctor assumes the release %s of the manifests in the namespace %s\n",
			s.release.Name, s.release.Namespace)
	}
	found := doctor.Read(ctx, s.cluster, s.release)
	found.GateAll = o.gateAll
	if o.askDNS {
		found.AskDNS(ctx, forwardTo(s.config, 15*time.Second))
	}
	if doctor.Report(s.out, found, o.skip) > 0 {
		return errTraps
	}
	return nil
}

func (s session) open(ctx context.Context, o options) error {
	nodes := o.nodes
	var doubt error
	if o.all {
		if s.release.Known == installation.DefaultKeys {
			return errors.New("open --all does not know the release's taint keys: their ConfigMap is gone\n" +
				"try: name the nodes, or kubectl taint nodes NODE KEY-")
		}
		if o.release == "" && !s.release.IsOnly() {
			return errors.New("open --all opens the nodes of one release, and there may be several: add --release " + s.release.Name)
		}
		var list corev1.NodeList
		if err := s.cluster.List(ctx, &list); err != nil {
			return err
		}
		var left, doubtful []string
		nodes, left, doubtful = manual.Tainted(list.Items, s.release)
		for _, text := range left {
			_, _ = fmt.Fprintln(s.out, text)
		}
		if len(doubtful) > 0 {
			doubt = fmt.Errorf("not opened, because they may be another release's: %s: %w\ntry: %s", strings.Join(doubtful, " "),
				s.release.Unseen, s.release.Command("open NODE"))
		}
		if len(nodes)+len(left)+len(doubtful) == 0 {
			_, _ = fmt.Fprintln(s.out, "no node has one of the taints")
		}
	}
	if c := s.release.Controller; c != nil && c.Retaint {
		_, _ = fmt.Fprintf(s.out, "If they fail, the controller may re-taint these nodes after %s, and others now. To stop it: "+
			"kubectl --namespace %s scale deployment %s-controller --replicas=0\n", c.RetaintCoolDown, s.release.Namespace, c.AgentName)
	}
	return errors.Join(s.patcher.Open(ctx, nodes), doubt)
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
	if !s.release.IsOnly() {
		_, _ = fmt.Fprintf(s.out, "release %s in the namespace %s: ", s.release.Name, s.release.Namespace)
	}
	err = status.Of(status.Input{
		Release: s.release, Nodes: nodes.Items, Pods: pods,
		Events: events("default", "Node"), PodEvents: events(s.release.Namespace, "Pod"),
	}, now).Print(s.out, now)
	seen := doctor.Cluster{Release: s.release, Now: now, Nodes: doctor.Part[[]corev1.Node]{Value: nodes.Items},
		NodePools: doctor.NodePools(ctx, s.cluster)}
	for _, text := range seen.LeftStartupTaints() {
		_, _ = fmt.Fprintln(s.out, text)
	}
	return err
}
