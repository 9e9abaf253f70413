//! Converts what a host is and has.

use skein_api as api;
use skein_api::{
    AccelFacts, CpuModel, FileFacts, HostFacts, Hugepages, MachineType, MigrationSlots, NicFacts, QemuFacts,
    QemuVersion, Room, RoomLimit, VmFacts,
};
use skein_inventory::facts::{self, FileSystem, Presence};
use skein_inventory::{Accel, Resource};

use super::{ToApi, same_fields, same_variants};

same_fields!(facts::QemuVersion => QemuVersion { major, minor, micro });
same_fields!(facts::Hugepages => Hugepages { page_bytes, total, free });
same_fields!(facts::MigrationSlots => MigrationSlots { limit, used });
same_fields!(facts::MachineType => MachineType { name, alias });
same_fields!(facts::CpuModel => CpuModel { name, missing, feature_count });
same_fields!(facts::NicFacts => NicFacts { name, speed_bits_per_s });
same_variants!(Accel => api::Accel { Auto, Kvm, Tcg });
same_fields!(facts::AccelFacts => AccelFacts { features | accel, cpu_models });
same_fields!(facts::QemuFacts => QemuFacts { program | version, machines, accels });
same_fields!(facts::VmFacts => VmFacts { name | presence });
same_variants!(FileSystem => api::FileSystem { Local, Network, Unknown });
same_fields!(facts::FileFacts => FileFacts {
    path, readable, writable, file_system_name, mounted_from, handle, device, inode, wwid | file_system
});
same_fields!(skein_inventory::RoomLimit => RoomLimit { owner, name, limit, used, promised, promised_to | resource });
same_fields!(skein_inventory::Room => Room { unread | limits });
same_fields!(facts::HostFacts => HostFacts {
    name, boot_id, ram_bytes, ram_available_bytes, kept_ram_bytes, cpus, cpu_vendor, cpu_flags, kvm, bridges,
    taps_in_use, journal, digests, swtpm, closed | room, hugepages, qemu, vms, incoming, outgoing, files, nics
});

impl ToApi for Presence {
    type Api = api::Presence;

    fn to_api(&self) -> api::Presence {
        match self {
            Presence::Guest => api::Presence::Guest,
            Presence::Stopped => api::Presence::Stopped,
            Presence::Leftover { migration } => api::Presence::Leftover { migration: migration.clone() },
        }
    }
}

impl ToApi for Resource {
    type Api = api::Resource;

    fn to_api(&self) -> api::Resource {
        match self {
            Resource::Ram => api::Resource::Ram,
            Resource::Commit => api::Resource::Commit,
            Resource::HugePages { page_bytes } => api::Resource::HugePages { page_bytes: *page_bytes },
            Resource::Tasks => api::Resource::Tasks,
            Resource::Addresses => api::Resource::Addresses,
            Resource::LockedRam => api::Resource::LockedRam,
            Resource::Other => api::Resource::Other,
        }
    }
}
