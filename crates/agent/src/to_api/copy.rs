//! Converts how far the copy of a guest is.

use skein_api as api;
use skein_api::{CopyRates, PageCounts};
use skein_forecast::Convergence;
use skein_inventory::{Packing, Route, Width};

use super::{ToApi, same_fields};

same_fields!(skein_forecast::CopyRates => CopyRates { dirties_bytes_per_s, moves_bytes_per_s });
same_fields!(skein_pages::PageCounts => PageCounts {
    pages, zero_pages, packed_pages, packed_bytes, stored_pages, written_pages, unchanged_pages, delta_pages,
    delta_bytes, packed_delta_bytes, repaired_pages, missed_pages, other_bytes, copied_bytes, target_copied_bytes,
    late_pages, packing_us, zstd_level, compared_us,
});

impl ToApi for Convergence {
    type Api = api::Convergence;

    fn to_api(&self) -> api::Convergence {
        match self {
            Convergence::FirstRound { seconds } => api::Convergence::FirstRound { seconds: *seconds },
            Convergence::In { seconds } => api::Convergence::In { seconds: *seconds },
            Convergence::Never(rates) => api::Convergence::Never(rates.to_api()),
        }
    }
}

impl ToApi for Route {
    type Api = api::Transport;

    fn to_api(&self) -> api::Transport {
        match (self.width(), self.packing()) {
            (Width::All, Packing::Auto | Packing::On) => api::Transport::Auto,
            (Width::All, Packing::Off) => api::Transport::Multichannel,
            (Width::One, Packing::Auto | Packing::On) => api::Transport::Compression,
            (Width::One, Packing::Off) => api::Transport::Tcp,
        }
    }
}

/// Returns what a command says of the way of a guest's memory.
pub(crate) fn route(transport: api::Transport) -> Route {
    match transport {
        api::Transport::Auto => Route::AUTO,
        api::Transport::Tcp => Route::TCP,
        api::Transport::Compression => Route::COMPRESSION,
        api::Transport::Multichannel => Route::MULTICHANNEL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transport_means_the_same_at_both_ends_and_has_the_same_name() {
        for transport in api::Transport::ALL {
            assert_eq!(route(transport).to_api(), transport);
            assert_eq!(route(transport).name(), transport.name());
        }
    }
}
