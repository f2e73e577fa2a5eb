package board

// device is a board that is known by its PCI id alone: no profiles are needed to select it.
type device struct {
	id   uint32 // device in the upper half, vendor in the lower
	name string // as the driver reports it
}

// The boards with MIG, by PCI device id. The source of a name is the list of released boards of NVIDIA's open kernel modules
// (595.45.04, src/nvidia/generated/g_nv_name_released.h), unless a comment says otherwise; "default configuration" is that of
// mig-parted, which has the id and no name. A device id is enough: where it has several names, they differ in the CPU's memory
// or in the board's part number.
var devices = []device{
	{0x20B010DE, "NVIDIA A100-SXM4-40GB"},
	{0x20B110DE, "NVIDIA A100-PCIE-40GB"}, // pci.ids: A100 PCIe 40GB; default configuration: of 40 GB
	{0x20B210DE, "NVIDIA A100-SXM4-80GB"},
	{0x20B310DE, "NVIDIA A100-SXM-64GB"},
	{0x20B510DE, "NVIDIA A100 80GB PCIe"},
	{0x20B610DE, "NVIDIA PG506-232"}, // default configuration: of 96 GB
	{0x20B710DE, "NVIDIA A30"},
	{0x20BD10DE, "NVIDIA A800-SXM4-40GB"},
	{0x20F110DE, "NVIDIA A100-PCIE-40GB"},
	{0x20F310DE, "NVIDIA A800-SXM4-80GB"},
	{0x20F510DE, "NVIDIA A800 80GB PCIe"},
	{0x20F610DE, "NVIDIA A800 40GB Active"},
	{0x20FD10DE, "NVIDIA AX800"},
	{0x230E10DE, "NVIDIA H20 NVL16"},
	{0x232110DE, "NVIDIA H100 NVL"},
	{0x232210DE, "NVIDIA H800 PCIe"},
	{0x232410DE, "NVIDIA H800"},
	{0x232910DE, "NVIDIA H20"},
	{0x232C10DE, "NVIDIA H20-3e"},
	{0x233010DE, "NVIDIA H100 80GB HBM3"},
	{0x233110DE, "NVIDIA H100 PCIe"},
	{0x233510DE, "NVIDIA H200"},
	{0x233910DE, "NVIDIA H100"},
	{0x233A10DE, "NVIDIA H800 NVL"},
	{0x233B10DE, "NVIDIA H200 NVL"},
	{0x233D10DE, "NVIDIA H100 96GB"}, // default configuration: of 96 GB; its name in the driver is not published
	{0x234210DE, "NVIDIA GH200 480GB"},
	{0x234810DE, "NVIDIA GH200 144G HBM3e"},
	{0x290110DE, "NVIDIA B200"},
	{0x294110DE, "NVIDIA GB200"},
	{0x2BB110DE, "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"},
	{0x2BB410DE, "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"},
	{0x2BB510DE, "NVIDIA RTX PRO 6000 Blackwell Server Edition"},
	{0x318210DE, "NVIDIA B300 SXM6 AC"},
	{0x31C210DE, "NVIDIA GB300"},
}

// NameOf returns the driver's name of the boards with a PCI device id, empty if it is not known.
func NameOf(id uint32) string {
	for _, d := range devices {
		if d.id == id {
			return d.name
		}
	}
	return ""
}
