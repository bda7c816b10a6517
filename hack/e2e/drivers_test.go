package e2e

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// kubeletPath is a path of the node, as this process reaches it: a unix socket is found by its path, whatever the network namespace.
func kubeletPath(s *harness.Suite, elements ...string) string {
	s.T.Helper()
	pid := strings.TrimSpace(s.Script("pid", "kubelet", node))
	return filepath.Join(append([]string{"/proc", pid, "root/var/lib/kubelet"}, elements...)...)
}

// listen serves on a socket of the node until the test ends.
func listen(s *harness.Suite, path string, server *grpc.Server) {
	s.T.Helper()
	s.NoError(os.MkdirAll(filepath.Dir(path), 0o750))
	_ = os.Remove(path)
	listener, err := (&net.ListenConfig{}).Listen(s.Ctx, "unix", path)
	s.NoError(err)
	s.Undo(func(context.Context) error {
		server.Stop()
		return nil
	})
	go func() { _ = server.Serve(listener) }()
}

// devices is a device plugin with some healthy devices.
type devices struct {
	deviceplugin.UnimplementedDevicePluginServer
	count chan int
}

func (d *devices) GetDevicePluginOptions(context.Context, *deviceplugin.Empty) (*deviceplugin.DevicePluginOptions, error) {
	return new(deviceplugin.DevicePluginOptions), nil
}

func (d *devices) ListAndWatch(_ *deviceplugin.Empty, stream grpc.ServerStreamingServer[deviceplugin.ListAndWatchResponse]) error {
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case n := <-d.count:
			answer := new(deviceplugin.ListAndWatchResponse)
			for i := range n {
				answer.Devices = append(answer.Devices, &deviceplugin.Device{ID: string(rune('a' + i)), Health: deviceplugin.Healthy})
			}
			if err := stream.Send(answer); err != nil {
				return err
			}
		}
	}
}

// startDevicePlugin registers a device plugin with the node's kubelet. It has no devices before set is called.
func startDevicePlugin(s *harness.Suite, resource string) (set func(count int)) {
	s.T.Helper()
	plugin := &devices{count: make(chan int, 1)}
	server := grpc.NewServer()
	deviceplugin.RegisterDevicePluginServer(server, plugin)
	const endpoint = "knr-e2e.sock"
	listen(s, kubeletPath(s, "device-plugins", endpoint), server)

	kubelet, err := grpc.NewClient("unix://"+kubeletPath(s, "device-plugins/kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	s.NoError(err)
	defer func() { _ = kubelet.Close() }()
	ctx, cancel := context.WithTimeout(s.Ctx, 30*time.Second)
	defer cancel()
	_, err = deviceplugin.NewRegistrationClient(kubelet).Register(ctx, &deviceplugin.RegisterRequest{
		Version: deviceplugin.Version, Endpoint: endpoint, ResourceName: resource})
	s.NoError(err)
	return func(count int) { plugin.count <- count }
}

// csiRegistration is what kubelet's plugin watcher asks of a CSI driver.
type csiRegistration struct {
	registration.UnimplementedRegistrationServer
	driver, endpoint string // as kubelet sees it
}

func (r csiRegistration) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: r.driver, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}

func (csiRegistration) NotifyRegistrationStatus(context.Context, *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	return new(registration.RegistrationStatusResponse), nil
}

// raw hands over the bytes of messages.
type raw struct{ encoding.Codec }

func (raw) Name() string                  { return "proto" }
func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = data
	return nil
}

// startCSIDriver registers a CSI driver by way of kubelet's plugin watcher. The driver knows one call, NodeGetInfo (csi.v1), whose
// answer has the node's id as field 1.
func startCSIDriver(s *harness.Suite, driver string) {
	s.T.Helper()
	answer := func(_ any, stream grpc.ServerStream) error {
		var request []byte
		if err := stream.RecvMsg(&request); err != nil {
			return err
		}
		response := append([]byte{1<<3 | 2, byte(len(node))}, node...)
		return stream.SendMsg(&response)
	}
	listen(s, kubeletPath(s, "plugins", driver, "csi.sock"), grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(answer)))
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, csiRegistration{driver: driver, endpoint: "/var/lib/kubelet/plugins/" + driver + "/csi.sock"})
	listen(s, kubeletPath(s, "plugins_registry", driver+"-reg.sock"), server)
}
