//! Fencing devices that do what a test says.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use skein_api::cluster::{FencingDevice, PowerState};
use skein_cluster::{PowerAction, PowerResult};
use skein_controller::fencing::{FencingDevices, PowerCall};

/// Devices that are nothing but their URLs.
#[derive(Default)]
pub struct FakeDevices {
    devices: Mutex<BTreeMap<String, FakeDevice>>,
}

#[derive(Clone, Default)]
pub struct FakeDevice {
    orders: u32,
    /// How often it was told to have its host shut itself down.
    pub shutdowns: u32,
    pub is_off: bool,
    pub is_broken: bool,
}

impl FakeDevices {
    pub fn set(&self, url: &str, change: impl FnOnce(&mut FakeDevice)) {
        change(self.devices.lock().entry(url.to_owned()).or_default());
    }

    pub fn get(&self, url: &str) -> FakeDevice {
        self.devices.lock().get(url).cloned().unwrap_or_default()
    }

    pub fn orders(&self, url: &str) -> u32 {
        self.devices.lock().get(url).map_or(0, |device| device.orders)
    }
}

impl FencingDevices for FakeDevices {
    fn call(&self, call: &PowerCall<'_>) -> PowerResult {
        let FencingDevice::Redfish { url, .. } = call.device else { panic!("{:?}", call.device) };
        let mut devices = self.devices.lock();
        let device = devices.entry(url.clone()).or_default();
        if device.is_broken {
            return PowerResult::Refused("nobody answers".into());
        }
        match call.action {
            PowerAction::Off => {
                assert!((call.lease_left)().is_some(), "only a leader orders a power-off");
                device.orders += 1;
                device.is_off = true;
                PowerResult::Accepted
            }
            PowerAction::Shutdown | PowerAction::On => {
                assert!((call.lease_left)().is_some(), "only a leader switches a host");
                device.shutdowns += u32::from(call.action == PowerAction::Shutdown);
                device.is_off = call.action == PowerAction::Shutdown;
                PowerResult::Accepted
            }
            PowerAction::Read | PowerAction::Check { .. } => {
                let state = if device.is_off { PowerState::Off } else { PowerState::On };
                PowerResult::State(state, "name alpha".into())
            }
        }
    }
}
